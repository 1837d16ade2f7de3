//! A server whose first thread keeps stdout locked while it accepts, and whose threads print; see
//! reports.txt.
use std::io::{self, Read, Write};
use std::net::TcpListener;

fn main() {
    let port: u16 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(0);
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "ready");
    for stream in TcpListener::bind(("127.0.0.1", port)).expect("a port").incoming() {
        let Ok(mut stream) = stream else { continue };
        std::thread::spawn(move || {
            let mut request = [0; 4096];
            let n = stream.read(&mut request).unwrap_or(0);
            // A path that does not exist is reported.
            if request[..n].starts_with(b"GET /hang") {
                println!("no such file");
            }
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nok");
        });
    }
}
