//! A client of HTTP/1.1 over a unix socket, as much as the tests need.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::PATIENCE;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Its status, as 201.
    pub status: u16,
    /// Names in lower case, values as they are.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// A connection that stays open from request to request.
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// One request. `headers` are whole lines without their ends; a length is added where there is
    /// a body. Blocks until the response is complete.
    ///
    /// # Errors
    /// Where the connection is lost, or what came is no response.
    pub fn request(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> io::Result<Response> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\n");
        for header in headers {
            head += &format!("{header}\r\n");
        }
        if !body.is_empty() && !headers.iter().any(|header| header.starts_with("Transfer-Encoding")) {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        let mut bytes = (head + "\r\n").into_bytes();
        bytes.extend_from_slice(body);
        self.stream.get_mut().write_all(&bytes)?;
        self.response()
    }

    /// PUT of a body.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn put(&mut self, path: &str, body: &[u8]) -> io::Result<Response> {
        self.request("PUT", path, &[], body)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn response(&mut self) -> io::Result<Response> {
        let first = self.line()?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not a response: {first}"));
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(bad)?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").ok_or_else(bad)?;
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let mut response = Response { status, headers, body: Vec::new() };
        let length = response.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        response.body = vec![0; length];
        self.stream.read_exact(&mut response.body)?;
        Ok(response)
    }
}
