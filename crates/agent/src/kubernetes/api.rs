//! Requests to the API server by HTTPS.
//!
//! Promises: nothing is sent before the server has proven by a certificate that it is the one; the
//! token is in no error. What is wrong with token or certificates is an error that names the file.

use crate::kubernetes::Kubernetes;
use crate::request::{self, Answer, Request, Stream, left};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto::ring};
use std::io::{self, Read};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a token.
const MAX_TOKEN_BYTES: u64 = 16 << 10;

/// A server and what it takes to be heard by it.
#[derive(Clone, Debug)]
pub struct Api {
    of: Kubernetes,
}

impl Stream for StreamOwned<ClientConnection, TcpStream> {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.sock.limit(time)
    }
}

impl Api {
    pub fn new(of: &Kubernetes) -> Api {
        Api { of: of.clone() }
    }

    /// The server's address, for messages.
    pub fn server(&self) -> String {
        self.of.server.to_string()
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.of.node
    }

    /// Reads what is at this path.
    ///
    /// # Errors
    /// As [`Api::post`]'s.
    pub fn get(&self, path: &str, accept: &str, most: usize, until: Instant) -> io::Result<Answer> {
        self.ask("GET", path, &[("Accept", accept)], &[], most, until)
    }

    /// Posts a body.
    ///
    /// # Errors
    /// A file that cannot be read or has a wrong form, a server that cannot be reached or does not
    /// prove that it is the one, and those of [`request::exchange`].
    pub fn post(&self, path: &str, body: &[u8], most: usize, until: Instant) -> io::Result<Answer> {
        self.ask("POST", path, &[], body, most, until)
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
        most: usize,
        until: Instant,
    ) -> io::Result<Answer> {
        let allowed = format!("Bearer {}", token(&self.of.token)?);
        let mut all = vec![("Authorization", allowed.as_str())];
        all.extend(fields);
        let mut stream = self.connect(until)?;
        let host = self.server();
        request::exchange(&mut stream, &Request { method, host: &host, path, fields: &all, body, most }, until)
    }

    fn connect(&self, until: Instant) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let trusted = Arc::new(trusted(&self.of.ca)?);
        let connection = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map(|config| config.with_root_certificates(trusted).with_no_client_auth())
            .and_then(|config| {
                ClientConnection::new(Arc::new(config), ServerName::IpAddress(self.of.server.ip().into()))
            })
            .map_err(io::Error::other)?;
        let socket = TcpStream::connect_timeout(&self.of.server, left(until)?)?;
        Ok(StreamOwned::new(connection, socket))
    }
}

/// The token of a file.
fn token(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_TOKEN_BYTES).read_to_string(&mut text));
    read.map_err(|e| named(path, &e))?;
    let text = text.trim();
    // It becomes a line of a request.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} has no token", path.display())));
    }
    Ok(text.to_owned())
}

/// The certificates of a file.
fn trusted(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let text = std::fs::read(path).map_err(|e| named(path, &e))?;
    for certificate in CertificateDer::pem_slice_iter(&text) {
        // One of a kind that is not known leaves the others.
        let _ = certificate.map(|certificate| roots.add(certificate));
    }
    if roots.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} has no certificate", path.display())));
    }
    Ok(roots)
}

fn named(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}
