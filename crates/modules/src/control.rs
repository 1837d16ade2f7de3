//! The way to running cores: each listens at an abstract UNIX socket named `orbit-core-PID-UID`, found in /proc/net/unix.
//!
//! Abstract names leave no file behind, however a core ends, but have no mode: so each side asks the kernel who the other is.
//! A core answers its own user and root; a command believes only the process that the name names, of its own user. One line
//! of JSON each way a connection.

use orbit_console::out::Failure;
use orbit_linux::{host, socket};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

/// What a core can be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    /// How it, its modules and its pins stand.
    List,
    /// To install this module and guard these programs for it.
    Load {
        /// A name of [`crate::builtin::ALL`].
        name: String,
        /// Process numbers.
        pids: Vec<u32>,
    },
    /// To remove it.
    Unload(String),
    /// To guard these programs for all modules.
    Guard(Vec<u32>),
    /// To guard them no more.
    Unguard(Vec<u32>),
}

/// What it answers.
pub type Answer = Result<Value, String>;

/// Longest line that either side reads, bytes.
const LONGEST: u64 = 1 << 20;
/// Conversations of a core at one time.
const MOST: usize = 64;
/// Pause when there is no room for one more.
const NO_ROOM: Duration = Duration::from_millis(10);
/// A core that does not answer a look within this is left out, and named.
const LOOK: Duration = Duration::from_secs(2);
/// Installing a module makes a process; on a busy machine that takes its time.
const CHANGE: Duration = Duration::from_secs(60);

fn address(pid: i32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("orbit-core-{pid}-{}", host::user()))
}

/// Listens as this process' core, in a thread that lives as long as the process. Each question goes to `answer`, in a thread of its
/// own: one that installs a module waits for its start, and nobody else is to.
pub fn serve(answer: impl Fn(Ask) -> Answer + Send + Sync + 'static) -> io::Result<()> {
    let answer = Arc::new(answer);
    let listener = UnixListener::bind_addr(&address(std::process::id() as i32)?)?;
    std::thread::Builder::new().name("orbit-control".into()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // No room for a descriptor: whoever comes waits until there is.
                std::thread::sleep(NO_ROOM);
                continue;
            };
            // Each conversation has an `answer`. Who comes when there are too many sees the end, as where there is no room for a thread.
            if !is_allowed(&stream) || Arc::strong_count(&answer) > MOST {
                continue;
            }
            let answer = answer.clone();
            let body = move || drop(converse(&stream, &*answer));
            let _ = std::thread::Builder::new().name("orbit-answer".into()).spawn(body);
        }
    })?;
    Ok(())
}

/// Whether this core answers the other side: its own user, and root.
fn is_allowed(stream: &UnixStream) -> bool {
    socket::peer(stream.as_fd()).is_ok_and(|(_, uid)| uid == host::user() || uid == 0)
}

fn converse(stream: &UnixStream, answer: &impl Fn(Ask) -> Answer) -> io::Result<()> {
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(LOOK))?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    // Who asked may have given up, here or while the module was installed: then it is not to stand.
    if given_up(stream) {
        return Ok(());
    }
    let ask = serde_json::from_str(&line).map_err(|error| format!("not understood: {error}"));
    let undo = match &ask {
        Ok(Ask::Load { name, .. }) => Some(Ask::Unload(name.clone())),
        _ => None,
    };
    let said = ask.and_then(answer);
    if let Some(undo) = undo.filter(|_| said.is_ok() && given_up(stream)) {
        let _ = answer(undo);
    }
    let mut bytes = serde_json::to_vec(&said)?;
    bytes.push(b'\n');
    (&mut &*stream).write_all(&bytes)
}

/// Whether the other side has closed its end.
fn given_up(stream: &UnixStream) -> bool {
    let mut fds = [libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    orbit_linux::poll::poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|n| n > 0)
}

/// The cores of this user that run now, by process number.
pub fn cores() -> Vec<i32> {
    let uid = host::user().to_string();
    let text = orbit_linux::procfs::text("/proc/net/unix").unwrap_or_default();
    let of_line = |line: &str| {
        let (pid, owner) = line.rsplit_once("@orbit-core-")?.1.split_once('-')?;
        (owner == uid).then(|| pid.parse().ok()).flatten()
    };
    let mut pids: Vec<i32> = text.lines().filter_map(of_line).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Asks the core of this process.
///
/// # Errors
/// There is none, it does not answer in time, or its own answer is an error.
pub fn ask(pid: i32, ask: &Ask) -> Result<Value, Failure> {
    let limit = if matches!(ask, Ask::List) { LOOK } else { CHANGE };
    let failed = |error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => "no core of yours runs there".to_owned(),
            io::ErrorKind::WouldBlock => format!("no answer within {limit:?}: is it stopped?"),
            _ => error.to_string(),
        };
        Failure::text(format!("core {pid}: {why}; `orbit modules` lists those that run"))
    };
    let line = exchange(pid, ask, limit).map_err(failed)?;
    let answer: Answer = serde_json::from_str(&line)?;
    answer.map_err(|why| Failure::text(format!("core {pid}: {why}")))
}

fn exchange(pid: i32, ask: &Ask, limit: Duration) -> io::Result<String> {
    let stream = UnixStream::connect_addr(&address(pid)?)?;
    if socket::peer(stream.as_fd())? != (pid, host::user()) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "another process has its name"));
    }
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut bytes = serde_json::to_vec(ask)?;
    bytes.push(b'\n');
    (&mut &stream).write_all(&bytes)?;
    let mut line = String::new();
    BufReader::new((&stream).take(LONGEST)).read_line(&mut line)?;
    Ok(line)
}
