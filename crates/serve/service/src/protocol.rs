//! What commands and host say to each other: one line of JSON each way, then the connection ends.

use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a line at most.
pub const LINE: u64 = 1 << 20;

/// A command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Request {
    /// Loads a service.
    Load(Load),
    /// Loads a service whenever its owner is there.
    Plan {
        /// As in `services.toml`: `unit:nginx.service`.
        owner: String,
        /// What is loaded; OWNER in its grants stands for the owner's number.
        load: Load,
    },
    /// Lists services and members.
    List,
    /// Reads an attribute, or sets it through its guard.
    Attr {
        /// `cpu:priority`.
        class: String,
        /// The thread or process.
        pid: i32,
        /// `None`: read it.
        value: Option<i64>,
    },
    /// Unloads a service and puts back what it set.
    Revoke {
        /// As `ls` shows it.
        id: String,
    },
    /// Starts a service's handler.
    Post {
        /// As `ls` shows it.
        id: String,
        /// What its event carries.
        value: u64,
    },
    /// Asks a service about a system call.
    Ask(Ask),
    /// What happened, the latest lines.
    Log,
    /// Makes a running program a member.
    Join {
        /// The process.
        pid: i32,
    },
    /// Takes the region out of a member.
    Leave {
        /// The process.
        pid: i32,
    },
    /// How a program finds the region.
    Invite,
    /// Takes a process that has joined for a member.
    Add {
        /// The process.
        pid: i32,
    },
}

/// Whose code a service is, and where it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// A wasm module, on an agent.
    #[default]
    Wasm,
    /// Native code of this trust domain: an upcall in whichever member is current.
    Native,
    /// Native code with a thread of its own from the start, where it may wait.
    Thread,
    /// A BPF object in the kernel, for root.
    Bpf,
}

/// A service to load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// The module or object; of a ready service, its name.
    pub file: PathBuf,
    /// It is one of `ready.rs`.
    #[serde(default)]
    pub is_ready: bool,
    /// Nothing is set: the log says what would be.
    #[serde(default)]
    pub dry_run: bool,
    /// The process it belongs to.
    pub owner: i32,
    /// `50us/10ms`.
    pub budget: String,
    /// Bytes of memory of a wasm module, if chosen; else [`Load::MEMORY`].
    pub memory: Option<usize>,
    /// Nanoseconds between two ticks; `None`: posted events only.
    pub period_ns: Option<u64>,
    /// Its class.
    #[serde(default)]
    pub class: Class,
    /// Other sources of events: `psi=memory:150ms/2s`, `fd=5`, `tracepoint=sched_process_exec`,
    /// `service=w1`.
    #[serde(default)]
    pub sources: Vec<String>,
    /// `cpu:priority:set(pid=42)`.
    pub grants: Vec<String>,
    /// What its handler gets.
    pub arguments: String,
    /// The terms of the descriptors that come with the command, in their order: `rs`,
    /// `rwa,100/s,moved`.
    #[serde(default)]
    pub gives: Vec<String>,
}

impl Load {
    /// Bytes of memory of a wasm module for which none were chosen.
    pub const MEMORY: usize = 256 << 10;

    /// The same for this owner: its number stands for OWNER in grants.
    pub fn for_owner(&self, owner: i32) -> Load {
        let grants = self.grants.iter().map(|grant| grant.replace("OWNER", &owner.to_string())).collect();
        Load { owner, grants, ..self.clone() }
    }
}

/// A question to a service: see `orbit_services::Question`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ask {
    /// As `ls` shows it: its number, or the name that no other service has.
    pub service: String,
    /// Nanoseconds that the asker waits.
    pub limit_ns: u64,
    /// Number of the call.
    pub call: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// The process.
    pub pid: u64,
    /// The thread.
    pub tid: u64,
    /// Address of the instruction.
    pub site: u64,
    /// The first path among the arguments; empty: none.
    pub path: String,
}

/// A service in a list.
#[derive(Debug, Serialize, Deserialize)]
pub struct Service {
    /// Its number.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `wasm`, `native` or `bpf`.
    pub class: String,
    /// The process it belongs to.
    pub owner: i32,
    /// Its budget.
    pub budget: String,
    /// Whether it was revoked.
    pub is_revoked: bool,
    /// Runs, and of these upcalls.
    pub runs: u64,
    /// Runs as upcalls in members.
    pub upcalls: u64,
    /// CPU time so far, nanoseconds.
    pub cpu_ns: u64,
    /// Runs aborted.
    pub aborts: u64,
    /// Events dropped: the reservation was used up, or the queue was full.
    pub dropped: u64,
    /// Values rejected, and forged handles.
    pub refused: u64,
    /// Ticks that were due: those that began a run, were merged and were missed, together.
    pub ticks_due: u64,
    /// Ticks that began a run.
    pub ticks_ran: u64,
    /// Ticks that were merged with a later one.
    pub ticks_merged: u64,
    /// Ticks that were missed: the budget was used up.
    pub ticks_missed: u64,
}

/// What the host answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    /// Done: what there is to say about it.
    Done(String),
    /// The services and members.
    List {
        /// All services.
        services: Vec<Service>,
        /// Processes of members.
        members: Vec<i32>,
        /// Why there are no upcalls, if there are none.
        no_ticks: Option<String>,
    },
    /// A service's answer: what becomes of the call, and its result.
    Answer {
        /// 0: it is made. 1: it is not, and has this result.
        verdict: u32,
        /// See `verdict`.
        result: i64,
    },
    /// Lines.
    Lines(Vec<String>),
    /// It failed.
    Failed(String),
}

/// Where the host's socket is, unless it is named: in the user's folder for such files.
pub fn default_socket() -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| PathBuf::from("/run"), PathBuf::from);
    folder.join("orbit-services.sock")
}

/// Asks the host. The wait for its answer is at most this long.
///
/// # Errors
/// When nobody listens there, or the answer is none.
pub fn ask_within(socket: &Path, request: &Request, limit: Duration) -> io::Result<Reply> {
    ask_giving(socket, request, limit, &[])
}

/// As [`ask_within`]; these descriptors go with the command.
///
/// # Errors
/// As there; `EBADF` for one that is not open.
pub fn ask_giving(socket: &Path, request: &Request, limit: Duration, gives: &[BorrowedFd<'_>]) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    let sent = orbit_linux::socket::send(stream.as_fd(), &line, gives)?;
    stream.write_all(&line[sent..])?;
    let mut answer = String::new();
    BufReader::new(stream.take(LINE)).read_line(&mut answer)?;
    serde_json::from_str(&answer).map_err(|error| {
        let why = format!("what the host answers is not understood: is it of another version of orbit? ({error})");
        io::Error::new(io::ErrorKind::InvalidData, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn an_answer_of_another_version_is_a_sentence() {
        let socket = std::env::temp_dir().join(format!("orbit-service-version-{}", std::process::id()));
        let listener = UnixListener::bind(&socket).expect("bound");
        let host = std::thread::spawn(move || {
            let (peer, _) = listener.accept().expect("a command");
            let mut line = String::new();
            BufReader::new(&peer).read_line(&mut line).expect("a line");
            (&peer).write_all(b"{\"a-later-reply\":{\"services\":[]}}\n").expect("sent");
        });
        let error = ask_within(&socket, &Request::List, Duration::from_secs(20)).expect_err("not understood");
        host.join().expect("answered");
        std::fs::remove_file(&socket).expect("removed");
        assert!(error.to_string().contains("another version of orbit"), "{error}");
    }
}
