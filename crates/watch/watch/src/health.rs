//! `--health FILE` and `--health-listen ADDRESS`: whether the program hangs, for the probes of an
//! orchestrator.
//!
//! | state | HTTP | meaning |
//! |---|---|---|
//! | `healthy` | 200 | no hang is known |
//! | `suspect` | 200 | a guess: a healthy program may be reported so |
//! | `hung` | 503 | a hang that is more than a guess, or one that lasts longer than `after=` |
//! | `unknown` | 200 | the guard has not been back in its loop for [`MAX_AGE`] |
//!
//! Promises: a file is whole whenever it is read (it is renamed into place), and gone when the
//! guard has ended by itself; a client that says nothing or reads nothing delays others by
//! [`CLIENT_TIME`] at most, and the guard not at all.

use orbit_ahd::{Hang, Sure};
use orbit_console::time::rfc3339;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How often the guard updates it.
pub const EVERY: Duration = Duration::from_secs(1);
/// A state so old is none.
const MAX_AGE: Duration = Duration::from_secs(30);
/// Time that one client gets.
const CLIENT_TIME: Duration = Duration::from_millis(500);
/// Bytes of a request that are read.
const MAX_REQUEST_BYTES: usize = 2048;
/// Hangs that are listed.
const MAX_LISTED: usize = 16;

/// One hang.
struct Hung {
    sure: Sure,
    since: SystemTime,
    value: Value,
}

/// What is known.
struct State {
    hangs: BTreeMap<(i32, i32), Hung>,
    /// A hang that lasts for so long is one, however sure its report is.
    after: Option<Duration>,
    /// When the program was last seen to run.
    ran: SystemTime,
    cpu: u64,
    pid: i32,
    updated: Instant,
}

/// See the module's head.
pub struct Health {
    file: Option<PathBuf>,
    state: Arc<Mutex<State>>,
    written: Option<Instant>,
    /// Where it answers.
    pub address: Option<SocketAddr>,
}

impl Health {
    /// Writes to `file`, and answers at `address`, where these are given. To be called with the
    /// signals blocked that only the guard's first thread is to get.
    ///
    /// # Errors
    /// A sentence if the file cannot be written or the address not be listened on.
    pub fn start(
        file: Option<&Path>,
        address: Option<SocketAddr>,
        after: Option<Duration>,
    ) -> Result<Option<Health>, String> {
        if file.is_none() && address.is_none() {
            return Ok(None);
        }
        let (now, updated) = (SystemTime::now(), Instant::now());
        let state = State { hangs: BTreeMap::new(), after, ran: now, cpu: 0, pid: 0, updated };
        let state = Arc::new(Mutex::new(state));
        let mut answers_at = None;
        if let Some(address) = address {
            let cannot = |error: io::Error| format!("cannot listen on {address} for --health-listen: {error}");
            let listener = TcpListener::bind(address).map_err(cannot)?;
            answers_at = Some(listener.local_addr().map_err(cannot)?);
            let shared = state.clone();
            let serve = move || {
                for client in listener.incoming() {
                    match client {
                        Ok(client) => answer(client, &shared),
                        // Out of descriptors, for instance: that takes a while.
                        Err(_) => std::thread::sleep(CLIENT_TIME),
                    }
                }
            };
            std::thread::Builder::new().name("orbit-health".into()).spawn(serve).map_err(cannot)?;
        }
        let file = file.map(std::path::absolute).transpose().map_err(|error| format!("--health: {error}"))?;
        let mut health = Health { file, state, written: None, address: answers_at };
        health.write().map_err(|error| format!("cannot write the file of --health: {error}"))?;
        Ok(Some(health))
    }

    /// A hang was reported.
    pub fn hangs(&mut self, hang: &Hang) {
        let now = SystemTime::now();
        let since = now.checked_sub(hang.since).unwrap_or(now);
        self.change(|state| {
            let since = state.hangs.get(&(hang.pid, hang.tid)).map_or(since, |known| known.since.min(since));
            let value = json!({
                "pid": hang.pid,
                "tid": hang.tid,
                "kind": hang.kind.word(),
                "sure": hang.sure.to_string(),
                "since": rfc3339(since),
                "why": hang.why,
            });
            state.hangs.insert((hang.pid, hang.tid), Hung { sure: hang.sure, since, value });
        });
    }

    /// A hang is over; if it is none that is known, all of its process are.
    pub fn over(&mut self, pid: i32, tid: i32) {
        self.change(|state| {
            if state.hangs.remove(&(pid, tid)).is_none() {
                state.hangs.retain(|key, _| key.0 != pid);
            }
        });
    }

    /// A process has ended, or is let go.
    pub fn left(&mut self, pid: i32) {
        self.change(|state| state.hangs.retain(|key, _| key.0 != pid));
    }

    /// Whether each hang lasts is not known.
    pub fn forget(&mut self) {
        self.change(|state| state.hangs.clear());
    }

    /// The guard is back in its loop; the program and all that is watched of it. Writes the file
    /// once in [`EVERY`].
    pub fn tick(&mut self, program: i32, pids: &[i32]) {
        if self.written.is_some_and(|written| written.elapsed() < EVERY) {
            self.locked(|state| state.updated = Instant::now());
            return;
        }
        let cpu = pids.iter().filter_map(|pid| orbit_linux::clock::cpu_ns_of(*pid)).sum();
        self.change(|state| {
            if std::mem::replace(&mut state.cpu, cpu) != cpu {
                state.ran = SystemTime::now();
            }
            state.pid = program;
        });
    }

    fn locked<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&mut self, work: impl FnOnce(&mut State)) {
        self.locked(|state| {
            work(state);
            state.updated = Instant::now();
        });
        // A full disk now may have room in a second; a probe sees by the time that it is old.
        let _ = self.write();
    }

    fn write(&mut self) -> io::Result<()> {
        self.written = Some(Instant::now());
        let Some(file) = &self.file else { return Ok(()) };
        let text = format!("{}\n", self.locked(|state| state.json()));
        let mut beside = file.clone().into_os_string();
        beside.push(format!(".{}", std::process::id()));
        let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, file));
        written.inspect_err(|_| drop(std::fs::remove_file(&beside)))
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // Someone may have removed it.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl State {
    fn word(&self) -> &'static str {
        let lasts = |hung: &Hung| self.after.is_some_and(|after| hung.since.elapsed().is_ok_and(|age| age >= after));
        let is_hung = |hung: &Hung| hung.sure > Sure::Guess || lasts(hung);
        match () {
            () if self.updated.elapsed() > MAX_AGE => "unknown",
            () if self.hangs.values().any(is_hung) => "hung",
            () if self.hangs.is_empty() => "healthy",
            () => "suspect",
        }
    }

    fn json(&self) -> Value {
        let since = self.hangs.values().map(|hung| hung.since).min();
        let listed: Vec<&Value> = self.hangs.values().take(MAX_LISTED).map(|hung| &hung.value).collect();
        json!({
            "state": self.word(),
            "time": rfc3339(SystemTime::now()),
            "pid": self.pid,
            "hung_since": since.map(rfc3339),
            // What runs in a hang is no progress.
            "last_progress": rfc3339(since.map_or(self.ran, |since| since.min(self.ran))),
            "hangs": listed,
            "hangs_in_all": self.hangs.len(),
        })
    }
}

/// Answers one request.
fn answer(client: TcpStream, state: &Mutex<State>) {
    // A client that has left gets no answer.
    let _ = try_answer(client, state);
}

fn try_answer(mut client: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let until = Instant::now() + CLIENT_TIME;
    client.set_write_timeout(Some(CLIENT_TIME))?;
    let mut request = Vec::new();
    while !request.windows(4).any(|four| four == b"\r\n\r\n") && request.len() < MAX_REQUEST_BYTES {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        client.set_read_timeout(Some(left))?;
        let mut some = [0; 512];
        match client.read(&mut some)? {
            0 => return Ok(()),
            n => request.extend(&some[..n]),
        }
    }
    let (status, body) = {
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        (if state.word() == "hung" { "503 Service Unavailable" } else { "200 OK" }, state.json().to_string())
    };
    let (is_head, is_get) = (request.starts_with(b"HEAD "), request.starts_with(b"GET "));
    let (status, body) = if is_head || is_get { (status, body) } else { ("405 Method Not Allowed", String::new()) };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
         Connection: close\r\n\r\n"
    );
    client.write_all(head.as_bytes())?;
    if is_get { client.write_all(body.as_bytes()) } else { Ok(()) }
}
