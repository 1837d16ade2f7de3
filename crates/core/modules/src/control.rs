//! The control socket of a running core: the file `core-PID.sock` of [`orbit_console::control`].
//!
//! Each side asks the kernel for the credentials of the other. A core answers its own user and
//! root; a command accepts only the process in the name, of its own user. A connection carries one
//! line of JSON each way.

use orbit_console::control::{self, SocketFile};
use orbit_console::out::Failure;
use orbit_linux::{host, socket};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// A request to a core.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// The state of the core, its modules and its pins.
    List,
    /// Install this module and guard these programs for it.
    Load {
        /// A name of [`crate::builtin::ALL`].
        name: String,
        /// Process numbers.
        pids: Vec<u32>,
    },
    /// Remove this module.
    Unload(String),
    /// Guard these programs for all modules.
    Guard(Vec<u32>),
    /// Stop guarding them.
    Unguard(Vec<u32>),
}

/// The core's answer: its state, or why the request failed.
pub type Answer = Result<Value, String>;

/// Maximum length of a line that either side reads, bytes.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Maximum number of connections that a core serves at a time.
const MAX_CONNECTIONS: usize = 64;
/// Pause before the next connection is accepted when that many are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Time limit for the answer to [`Request::List`]; a core that exceeds it is named and left out.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for the other requests: installing a module forks a process, which takes longer on a
/// loaded machine.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// What the names of cores' sockets begin with.
const KIND: &str = "core";

/// Listens as this process' core, in a thread that lives as long as the process. Each question goes
/// to `answer`, in a thread of its own: one that installs a module waits for its start, and nothing
/// else is to. The file is removed with the value that is answered.
///
/// # Errors
/// There is no folder for the socket; those of making the thread.
pub fn serve(answer: impl Fn(Request) -> Answer + Send + Sync + 'static) -> io::Result<SocketFile> {
    let answer = Arc::new(answer);
    let (listener, file) = control::listen(KIND)?;
    std::thread::Builder::new().name("orbit-control".into()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // No descriptor is free: the peer waits until one is.
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            // Each connection holds a clone of `answer`. Beyond the limit, or without a thread, a
            // connection is closed at once.
            if !is_allowed(&stream) || Arc::strong_count(&answer) > MAX_CONNECTIONS {
                continue;
            }
            let answer = answer.clone();
            let body = move || drop(serve_one(&stream, &*answer));
            let _ = std::thread::Builder::new().name("orbit-answer".into()).spawn(body);
        }
    })?;
    Ok(file)
}

/// Whether this core answers the peer: its own user, and root.
fn is_allowed(stream: &UnixStream) -> bool {
    socket::peer(stream.as_fd()).is_ok_and(|(_, uid)| uid == host::user() || uid == 0)
}

fn serve_one(stream: &UnixStream, answer: &impl Fn(Request) -> Answer) -> io::Result<()> {
    stream.set_read_timeout(Some(LIST_TIMEOUT))?;
    stream.set_write_timeout(Some(LIST_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_LINE_BYTES)).read_line(&mut line)?;
    // The peer may have hung up, here or while the module was installed: then its request is
    // undone.
    if has_hung_up(stream) {
        return Ok(());
    }
    let request = serde_json::from_str(&line).map_err(|error| format!("not understood: {error}"));
    let undo = match &request {
        Ok(Request::Load { name, .. }) => Some(Request::Unload(name.clone())),
        _ => None,
    };
    let said = request.and_then(answer);
    if let Some(undo) = undo.filter(|_| said.is_ok() && has_hung_up(stream)) {
        let _ = answer(undo);
    }
    let mut bytes = serde_json::to_vec(&said)?;
    bytes.push(b'\n');
    (&mut &*stream).write_all(&bytes)
}

/// Whether the peer has closed its end.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    orbit_linux::poll::poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|n| n > 0)
}

/// Returns the process numbers of this user's running cores, sorted.
pub fn cores() -> Vec<i32> {
    control::owners(KIND)
}

/// Sends a request to the core in this process and waits for the answer: 2 s for a list, 60 s for
/// the others.
///
/// # Errors
/// There is no such core, it does not answer in time, or its answer is an error.
pub fn ask(pid: i32, request: &Request) -> Result<Value, Failure> {
    let limit = if matches!(request, Request::List) { LIST_TIMEOUT } else { CHANGE_TIMEOUT };
    let failed = |error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "no core of yours runs there".to_owned(),
            io::ErrorKind::WouldBlock => format!("no answer within {limit:?}: is it stopped?"),
            _ => error.to_string(),
        };
        Failure::text(format!("core {pid}: {why}; `orbit modules` lists those that run"))
    };
    let line = exchange(pid, request, limit).map_err(failed)?;
    let answer: Answer = serde_json::from_str(&line)?;
    answer.map_err(|why| Failure::text(format!("core {pid}: {why}")))
}

fn exchange(pid: i32, request: &Request, limit: Duration) -> io::Result<String> {
    let stream = control::connect(KIND, pid)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut bytes = serde_json::to_vec(request)?;
    bytes.push(b'\n');
    (&mut &stream).write_all(&bytes)?;
    let mut line = String::new();
    BufReader::new((&stream).take(MAX_LINE_BYTES)).read_line(&mut line)?;
    Ok(line)
}
