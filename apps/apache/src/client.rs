//! A client: one connection, requests one after the other.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// Status and body of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 and so on.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// A connection that is kept open.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects to this port of loopback.
    ///
    /// # Errors
    /// As the system says.
    pub fn open(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(crate::PATIENCE))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Requests a path and reads the answer.
    ///
    /// # Errors
    /// The connection was lost, there was no answer in time, or it makes no sense.
    pub fn get(&mut self, path: &str) -> io::Result<Answer> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let status = self.line()?.split(' ').nth(1).and_then(|number| number.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", number)) => length = number.parse().map_err(io::Error::other)?,
                Some(("transfer-encoding", _)) => chunked = true,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = Vec::new();
        if chunked {
            loop {
                let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
                self.bytes(&mut body, size)?;
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else {
            self.bytes(&mut body, length)?;
        }
        Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned() })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn bytes(&mut self, body: &mut Vec<u8>, count: usize) -> io::Result<()> {
        let start = body.len();
        body.resize(start + count, 0);
        self.stream.read_exact(&mut body[start..])
    }
}

/// One request on a connection of its own.
///
/// # Errors
/// As [`Client::get`].
pub fn get(port: u16, path: &str) -> io::Result<Answer> {
    Client::open(port)?.get(path)
}
