//! Redis' throughput natively and under the executive, with Redis' own load generator over a unix
//! socket.

use super::failure;
use orbit_console::out::Failure;
use orbit_hijack::{Options, Session};
use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What one run gave.
pub struct Throughput {
    /// GET, requests a second.
    pub get: f64,
    /// SET, requests a second.
    pub set: f64,
    /// Of all calls, the percentage that came by signal; 0 natively.
    pub by_signal: f64,
}

/// A server that runs.
enum Server {
    Native(Child),
    Guest(Box<Session>),
}

/// Whether server and load generator are installed.
pub fn is_there() -> bool {
    ["redis-server", "redis-benchmark"].iter().all(|name| Command::new(name).arg("--version").output().is_ok())
}

/// Starts a server, loads it with `requests` of each kind, and shuts it down.
pub fn run(is_guest: bool, requests: u32) -> Result<Throughput, Failure> {
    let place = std::env::temp_dir().join(format!("orbit-bench-hijack-{}", std::process::id()));
    std::fs::create_dir_all(&place)?;
    let socket = place.join("redis");
    let done = serve(is_guest, requests, &place, &socket).map_err(|error| failure("Redis", &error));
    // A folder of this process; what remains in it is of no use.
    let _ = std::fs::remove_dir_all(&place);
    done
}

fn serve(is_guest: bool, requests: u32, place: &Path, socket: &Path) -> io::Result<Throughput> {
    let arguments = ["redis-server", "--port", "0", "--save", "", "--unixsocket"].map(OsString::from);
    let arguments: Vec<OsString> = arguments.into_iter().chain([socket.into()]).collect();
    let quiet = |command: &mut Command| {
        command.current_dir(place).stdin(Stdio::null()).stdout(Stdio::null());
    };
    let server = if is_guest {
        Server::Guest(Box::new(Session::start_with(&Options::default(), &arguments, quiet)?))
    } else {
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]);
        quiet(&mut command);
        Server::Native(command.spawn()?)
    };
    let loaded = load(socket, requests);
    let shutdown = Command::new("redis-cli").arg("-s").arg(socket).args(["shutdown", "nosave"]).output();
    let by_signal = end(server, shutdown.is_ok())?;
    let (get, set) = loaded?;
    Ok(Throughput { get, set, by_signal })
}

/// Waits for the server, which was asked to end; else kills it.
fn end(server: Server, was_asked: bool) -> io::Result<f64> {
    match server {
        Server::Native(mut child) => {
            if !was_asked {
                child.kill()?;
            }
            child.wait().map(|_| 0.0)
        }
        Server::Guest(mut session) => {
            if !was_asked {
                // SAFETY: a signal to a child that has not been reaped.
                unsafe { libc::kill(session.pid() as i32, libc::SIGKILL) };
            }
            session.follow(|_| Ok(()))?;
            let outcome = session.outcome();
            let calls: u64 = outcome.calls.values().sum();
            Ok(100.0 * outcome.traps as f64 / calls.max(1) as f64)
        }
    }
}

/// GET and SET, requests a second.
fn load(socket: &Path, requests: u32) -> io::Result<(f64, f64)> {
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
    Ok((figure("GET").ok_or_else(missing)?, figure("SET").ok_or_else(missing)?))
}
