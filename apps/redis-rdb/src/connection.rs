//! A connection to a server: commands in words, answers as text.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// One client.
pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    /// Connects to the socket at this path.
    ///
    /// # Errors
    /// As the system says.
    pub fn open(socket: &Path) -> io::Result<Connection> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(crate::PATIENCE))?;
        Ok(Connection { stream: BufReader::new(stream) })
    }

    /// Sends a command and reads its answer: strings and numbers as they are, elements of a list
    /// one a line, an error with its leading `-`.
    ///
    /// # Errors
    /// The connection was lost, or there was no answer in time.
    pub fn run(&mut self, words: &[&str]) -> io::Result<String> {
        self.send(words)?;
        self.answer()
    }

    /// Sends a command without reading the answer.
    ///
    /// # Errors
    /// The connection was lost.
    pub fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.get_mut().write_all(request.as_bytes())
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// The connection was lost, or there was no answer in time.
    pub fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let number = || line[1..].parse::<i64>().map_err(io::Error::other);
        match line.as_bytes().first() {
            Some(b'-') => Ok(line.to_owned()),
            Some(b'$') => {
                let Ok(length) = usize::try_from(number()?) else { return Ok(String::new()) };
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
            Some(b'*') => {
                let elements: io::Result<Vec<String>> = (0..number()?.max(0)).map(|_| self.answer()).collect();
                Ok(elements?.join("\n"))
            }
            _ => Ok(line.get(1..).unwrap_or_default().to_owned()),
        }
    }
}
