//! Backends: a small HTTP server for each, in threads of this process, that answers with its name.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A backend on loopback. Its sockets are closed when it is dropped.
pub struct Backend {
    port: u16,
    served: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Backend {
    /// One that answers every request with `name`.
    ///
    /// # Panics
    /// Where no port is free.
    pub fn start(name: &str) -> Backend {
        Backend::start_at(name, 0)
    }

    /// The same at this port.
    ///
    /// # Panics
    /// Where the port is taken.
    pub fn start_at(name: &str, port: u16) -> Backend {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let port = listener.local_addr().expect("its address").port();
        let (served, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let reply =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{name}", name.len());
        let connections: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (count, stop, open) = (Arc::clone(&served), Arc::clone(&ends), Arc::clone(&connections));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (reply, count, stop) = (reply.clone(), Arc::clone(&count), Arc::clone(&stop));
                open.lock().unwrap_or_else(PoisonError::into_inner).extend(stream.try_clone());
                std::thread::spawn(move || serve(stream, &reply, &count, &stop));
            }
        });
        Backend { port, served, ends, connections }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Requests answered so far.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Wakes the listener, which closes its socket.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        for connection in self.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn serve(stream: TcpStream, reply: &str, count: &AtomicU64, stop: &AtomicBool) {
    let _ = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while !stop.load(Ordering::Relaxed) {
        line.clear();
        match stream.read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        // The empty line ends a request: these have no body.
        if line.trim_end().is_empty() {
            count.fetch_add(1, Ordering::Relaxed);
            if stream.get_mut().write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }
}
