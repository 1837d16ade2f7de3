//! nginx serves a file of 1 KB natively and under the executive, to eight connections that stay
//! open.

use super::failure;
use super::servers::{Served, Server};
use orbit_console::out::Failure;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const SERVER: &str = "/usr/sbin/nginx";
const CONNECTIONS: usize = 8;
const WARM_UP: usize = 2_000;
const LIMIT: Duration = Duration::from_secs(30);

/// Whether it is installed.
pub fn is_there() -> bool {
    Path::new(SERVER).exists()
}

/// Starts a server of one process, makes `requests`, and ends it.
pub fn run(is_guest: bool, requests: usize) -> Result<Served<1>, Failure> {
    let place = std::env::temp_dir().join(format!("orbit-bench-hijack-nginx-{}", std::process::id()));
    fs::create_dir_all(place.join("logs"))?;
    let done = serve(is_guest, requests, &place).map_err(|error| failure("nginx", &error));
    // A folder of this process; what remains in it is of no use.
    let _ = fs::remove_dir_all(&place);
    done
}

fn serve(is_guest: bool, requests: usize, place: &Path) -> io::Result<Served<1>> {
    let (at, socket) = (place.display(), place.join("socket"));
    fs::write(place.join("file"), [b'x'; 1024])?;
    // A worker of another user than root could not read a folder that is this user's only.
    let user = if orbit_linux::host::user() == 0 { "user root;" } else { "" };
    let settings = format!(
        "daemon off; master_process off; {user} pid {at}/pid; error_log {at}/logs/error.log;
         events {{ worker_connections 64; }}
         http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {at}/body;
           proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path \
           {at}/scgi;
           server {{ listen unix:{at}/socket; root {at}; }} }}"
    );
    fs::write(place.join("nginx.conf"), settings)?;
    let arguments = [SERVER.into(), "-p".into(), place.into(), "-c".into(), place.join("nginx.conf").into()];
    let mut server = Server::start(is_guest, &arguments, |_| ())?;
    let loaded = load(&socket, WARM_UP).and_then(|_| {
        server.settle();
        load(&socket, requests)
    });
    let by_signal = server.end(false)?;
    loaded.map(|rate| Served { rates: [rate], by_signal })
}

/// Requests a second. Each round sends one request on every connection, then reads the answers.
fn load(socket: &Path, requests: usize) -> io::Result<f64> {
    let limit = Instant::now() + LIMIT;
    let connect = || loop {
        match UnixStream::connect(socket) {
            Err(_) if Instant::now() < limit => std::thread::sleep(Duration::from_millis(10)),
            connected => break connected,
        }
    };
    let mut connections: Vec<UnixStream> = (0..CONNECTIONS).map(|_| connect()).collect::<Result<_, _>>()?;
    for connection in &connections {
        connection.set_read_timeout(Some(LIMIT))?;
    }
    let began = Instant::now();
    for _ in 0..requests / CONNECTIONS {
        for connection in &mut connections {
            connection.write_all(b"GET /file HTTP/1.1\r\nHost: bench\r\n\r\n")?;
        }
        for connection in &mut connections {
            answer(connection)?;
        }
    }
    Ok(requests as f64 / began.elapsed().as_secs_f64())
}

/// One answer: its header, and as much as that says.
fn answer(connection: &mut UnixStream) -> io::Result<()> {
    let mut bytes = [0; 4096];
    let mut have = 0;
    loop {
        match connection.read(&mut bytes[have..])? {
            0 => return Err(io::Error::other("the server ended the connection")),
            read => have += read,
        }
        let Some(end) = bytes[..have].windows(4).position(|part| part == b"\r\n\r\n") else { continue };
        if !bytes.starts_with(b"HTTP/1.1 200") {
            let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
            return Err(io::Error::other(format!("the server answers {text:?}")));
        }
        if have >= end + 4 + 1024 {
            return Ok(());
        }
    }
}
