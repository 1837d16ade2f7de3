//! Frames by TLS over a socket that never blocks.
//!
//! A frame is its length in four bytes, little end first, and so many bytes. Promises: no frame of
//! more than [`MAX_FRAME_BYTES`] is read or sent; what is not sent yet is at most one frame beyond
//! the first; a peer that closes, also without TLS' own end, is an error.

use orbit_linux::poll::poll;
use orbit_rmk::wire::{decode, encode};
use rustls::Connection;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

pub(crate) const MAX_FRAME_BYTES: usize = 1 << 20;
const LENGTH_BYTES: usize = 4;

/// See the module's head.
pub(crate) struct Framed {
    socket: TcpStream,
    tls: Connection,
    incoming: Vec<u8>,
}

impl Framed {
    /// Both sides prove who they are, until then.
    pub fn begin(socket: TcpStream, tls: impl Into<Connection>, until: Instant) -> io::Result<Framed> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let mut tls: Connection = tls.into();
        // What is put while something waits to be sent is bounded by those who put it.
        tls.set_buffer_limit(None);
        let mut framed = Framed { socket, tls, incoming: Vec::new() };
        while framed.tls.is_handshaking() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            framed.wait(None, left)?;
            framed.exchange()?;
        }
        framed.exchange()?;
        Ok(framed)
    }

    /// The other side's certificate, in DER.
    pub fn peer(&self) -> Option<&[u8]> {
        self.tls.peer_certificates()?.first().map(AsRef::as_ref)
    }

    /// Waits until there is something to do here or at `wake`, at most `time`.
    pub fn wait(&self, wake: Option<BorrowedFd<'_>>, time: Duration) -> io::Result<()> {
        let mut events = libc::POLLIN;
        if self.tls.wants_write() {
            events |= libc::POLLOUT;
        }
        let mut fds = vec![libc::pollfd { fd: self.socket.as_raw_fd(), events, revents: 0 }];
        fds.extend(wake.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }));
        poll(&mut fds, Some(time)).map(|_| ())
    }

    /// Sends and reads as far as that is possible now.
    pub fn exchange(&mut self) -> io::Result<()> {
        self.send()?;
        // A peer that sends without end gets its answers all the same.
        while self.incoming.len() <= LENGTH_BYTES + MAX_FRAME_BYTES {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {
                    let processed = self.tls.process_new_packets();
                    // Why it ends is for the peer too.
                    let state = processed.map_err(|e| {
                        let _ = self.tls.write_tls(&mut self.socket);
                        io::Error::new(io::ErrorKind::InvalidData, e)
                    })?;
                    let start = self.incoming.len();
                    self.incoming.resize(start + state.plaintext_bytes_to_read(), 0);
                    self.tls.reader().read_exact(&mut self.incoming[start..])?;
                    if state.peer_has_closed() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether one more frame may be put: all before it has left.
    pub fn has_room(&self) -> bool {
        !self.tls.wants_write()
    }

    /// Sends a value, now or as soon as there is room.
    pub fn put(&mut self, value: &impl Serialize) -> io::Result<()> {
        let bytes = encode(value);
        if bytes.len() > MAX_FRAME_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is too long for a frame"));
        }
        let mut writer = self.tls.writer();
        writer.write_all(&(bytes.len() as u32).to_le_bytes())?;
        writer.write_all(&bytes)?;
        self.send()
    }

    /// The next value that has arrived whole.
    pub fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(length) = self.incoming.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if length > MAX_FRAME_BYTES {
            return Err(invalid(format!("a frame of {length} bytes, {MAX_FRAME_BYTES} at most")));
        }
        let Some(bytes) = self.incoming.get(LENGTH_BYTES..LENGTH_BYTES + length) else { return Ok(None) };
        let value = decode(bytes).ok_or_else(|| invalid("a frame that is no message".into()))?;
        self.incoming.drain(..LENGTH_BYTES + length);
        Ok(Some(value))
    }
}
