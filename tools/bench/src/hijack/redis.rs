//! Redis' throughput natively and under the executive, with Redis' own load generator over a unix
//! socket.

use super::failure;
use super::servers::{Served, Server};
use orbit_console::out::Failure;
use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Requests of each kind before those that count.
const WARM_UP: u32 = 2_000;

/// Whether server and load generator are installed.
pub fn is_there() -> bool {
    ["redis-server", "redis-benchmark"].iter().all(|name| Command::new(name).arg("--version").output().is_ok())
}

/// Starts a server, loads it with `requests` of each kind, and shuts it down: GET and SET.
pub fn run(is_guest: bool, requests: u32) -> Result<Served<2>, Failure> {
    let place = std::env::temp_dir().join(format!("orbit-bench-hijack-{}", std::process::id()));
    std::fs::create_dir_all(&place)?;
    let socket = place.join("redis");
    let done = serve(is_guest, requests, &place, &socket).map_err(|error| failure("Redis", &error));
    // A folder of this process; what remains in it is of no use.
    let _ = std::fs::remove_dir_all(&place);
    done
}

fn serve(is_guest: bool, requests: u32, place: &Path, socket: &Path) -> io::Result<Served<2>> {
    let arguments = ["redis-server", "--port", "0", "--save", "", "--unixsocket"].map(OsString::from);
    let arguments: Vec<OsString> = arguments.into_iter().chain([socket.into()]).collect();
    let mut server = Server::start(is_guest, &arguments, |command| {
        command.current_dir(place);
    })?;
    let loaded = load(socket, WARM_UP).and_then(|_| {
        server.settle();
        load(socket, requests)
    });
    let shutdown = Command::new("redis-cli").arg("-s").arg(socket).args(["shutdown", "nosave"]).output();
    let by_signal = server.end(shutdown.is_ok_and(|output| output.status.success()))?;
    loaded.map(|rates| Served { rates, by_signal })
}

/// GET and SET, requests a second.
fn load(socket: &Path, requests: u32) -> io::Result<[f64; 2]> {
    let limit = Instant::now() + Duration::from_secs(30);
    while UnixStream::connect(socket).is_err() {
        if Instant::now() > limit {
            return Err(io::Error::other("the server does not answer"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let path: PathBuf = socket.into();
    let mut command = Command::new("redis-benchmark");
    command.arg("-s").arg(path).args(["-t", "set,get", "-c", "20", "--csv", "-n", &requests.to_string()]);
    let text = String::from_utf8_lossy(&command.output()?.stdout).into_owned();
    let figure = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("\"{name}\"")))?;
        line.split(',').nth(1)?.trim_matches('"').parse().ok()
    };
    let missing = || io::Error::other(format!("redis-benchmark gave no figures: {text:?}"));
    Ok([figure("GET").ok_or_else(missing)?, figure("SET").ok_or_else(missing)?])
}
