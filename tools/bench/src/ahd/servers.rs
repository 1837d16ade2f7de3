//! The programs that are watched: how a Redis and an nginx are set up, in a directory of their own.

use super::scratch;
use orbit_console::out::Failure;
use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where a Redis in this directory listens.
pub fn redis_socket(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

/// Where an nginx in this directory listens.
pub fn nginx_socket(dir: &Path) -> PathBuf {
    dir.join("nginx.sock")
}

/// A Redis that writes an append-only file.
pub fn redis(dir: &Path, more: &[&str]) -> Vec<OsString> {
    let mut all: Vec<OsString> =
        ["redis-server", "--port", "0", "--save", "", "--appendonly", "yes"].map(Into::into).into();
    all.extend(["--auto-aof-rewrite-percentage", "0", "--hash-max-listpack-entries", "16", "--dir"].map(Into::into));
    all.push(dir.into());
    all.push("--logfile".into());
    all.push(dir.join("redis.log").into());
    all.push("--unixsocket".into());
    all.push(redis_socket(dir).into());
    all.extend(more.iter().map(Into::into));
    all
}

/// An nginx with one worker that serves `www`: by sendfile, and under `/aio/` by threads. `listen`
/// may name one more place.
pub fn nginx(dir: &Path, www: &Path, listen: Option<&str>) -> Result<Vec<OsString>, Failure> {
    let root = orbit_linux::host::user() == 0;
    let user = if root { "user root;" } else { "" };
    let (at, www) = (dir.display(), www.display());
    let listen = listen.map_or_else(String::new, |place| format!("listen {place};"));
    let log = if listen.is_empty() { format!("{at}/access.log") } else { "off".to_owned() };
    let config = format!(
        "{user} daemon off; worker_processes 1; pid {at}/nginx.pid; thread_pool bench threads=2;
        events {{ worker_connections 1000; }}
        http {{
            access_log {log}; keepalive_requests 1000000000; sendfile on;
            client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;
            uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
            server {{
                listen unix:{at}/nginx.sock; {listen} root {www};
                location /aio/ {{ alias {www}/; sendfile off; aio threads=bench; }}
            }}
        }}\n"
    );
    let path = dir.join("nginx.conf");
    std::fs::write(&path, config)?;
    let program = if scratch::has("nginx") { "nginx" } else { "/usr/sbin/nginx" };
    let mut all: Vec<OsString> = vec![program.into(), "-e".into(), dir.join("error.log").into()];
    all.extend(["-p".into(), dir.into(), "-c".into(), path.into()]);
    Ok(all)
}

/// Waits until somebody listens there.
pub fn wait_ready(socket: &Path) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > Duration::from_secs(20) => {
                return Err(Failure::text(format!("no server listens at {}: {error}", socket.display())));
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
            Err(error) => return Err(error.into()),
        }
        scratch::go_on()?;
        std::thread::sleep(Duration::from_millis(5));
    }
}
