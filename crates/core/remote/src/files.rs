//! The node's certificate and key, and the authority that signs those of all nodes.
//!
//! Promises: the files are read for each connection, so that a renewed certificate needs no
//! restart; what is wrong with one names the file; a key that everyone can read is refused. TLS
//! 1.3 only; both sides prove who they are; no session is resumed, so each proof is a new one.

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where they are, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The node's certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The certificates by which those of all nodes are signed.
    pub ca: PathBuf,
}

impl Files {
    /// Reads them once: what is wrong is known before anything is served.
    ///
    /// # Errors
    /// A file that cannot be read, holds nothing of its kind, or a key for everyone's eyes.
    pub fn check(&self) -> io::Result<()> {
        self.server_config().map(|_| ())
    }

    /// The server's side of one connection.
    pub(crate) fn server(&self) -> io::Result<ServerConnection> {
        ServerConnection::new(Arc::new(self.server_config()?)).map_err(io::Error::other)
    }

    /// The client's side of a connection to the node of this name.
    pub(crate) fn client(&self, node: &str) -> io::Result<ClientConnection> {
        let (chain, key, roots) = self.read()?;
        let name = ServerName::try_from(node.to_owned())
            .map_err(|_| invalid(format!("{node:?} is no name that a certificate can have")))?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map(|config| config.with_root_certificates(roots))
            .and_then(|config| config.with_client_auth_cert(chain, key))
            .map_err(|e| invalid(format!("{}: {e}", self.certificate.display())))?;
        config.resumption = Resumption::disabled();
        ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)
    }

    fn server_config(&self) -> io::Result<ServerConfig> {
        let (chain, key, roots) = self.read()?;
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|e| invalid(format!("{}: {e}", self.ca.display())))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map(|config| config.with_client_cert_verifier(verifier))
            .and_then(|config| config.with_single_cert(chain, key))
            .map_err(|e| invalid(format!("{}: {e}", self.certificate.display())))?;
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn read(&self) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, RootCertStore)> {
        let chain = certificates(&self.certificate)?;
        let mode = std::fs::metadata(&self.key).map_err(|e| named(&self.key, &e))?.permissions().mode();
        if mode & 0o007 != 0 {
            let why = "is open to everyone: make it readable by its owner only (chmod 600)";
            return Err(invalid(format!("{} {why}", self.key.display())));
        }
        let text = std::fs::read(&self.key).map_err(|e| named(&self.key, &e))?;
        let key = PrivateKeyDer::from_pem_slice(&text)
            .map_err(|_| invalid(format!("{} has no private key", self.key.display())))?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate).map_err(|e| invalid(format!("{}: {e}", self.ca.display())))?;
        }
        Ok((chain, key, roots))
    }
}

/// The certificates of a file, one at least.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text = std::fs::read(path).map_err(|e| named(path, &e))?;
    let all: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|_| invalid(format!("{} is no file of certificates (PEM)", path.display())))?;
    if all.is_empty() {
        return Err(invalid(format!("{} has no certificate", path.display())));
    }
    Ok(all)
}

fn named(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
