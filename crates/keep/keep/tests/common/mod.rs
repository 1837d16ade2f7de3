//! A kept Redis on a unix socket, a client that speaks as much of its protocol as is needed, and
//! waits for conditions.
#![allow(dead_code, reason = "each test uses a part")]

pub mod apache;
pub mod campaign;
pub mod hung;
pub mod nginx;

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub const KEEP: &str = env!("CARGO_BIN_EXE_orbit-keep");

/// A program without a log is put back whatever it has done since: for tests of what goes back.
pub const BEST_EFFORT: [&str; 3] = ["--state", "best-effort", "--allow-repeats"];

/// Waits until `done` answers something.
pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(10));
    }
}

/// A folder that is removed with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("orbit-keep-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Scratch(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what is left of it: {}", self.0.display());
            return;
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Events that a keeper has written.
pub fn events(file: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.map(|line| orbit_testing::described("keep-events", line)).collect()
}

/// How many checkpoints were taken, as far as that is shown.
pub fn checkpoints(pid: i32) -> Option<u64> {
    let said = Command::new(KEEP).args(["--status", "--json"]).output().expect("orbit-keep").stdout;
    let all: serde_json::Value = serde_json::from_slice(&said).unwrap_or_default();
    let mut rows = all["keepers"].as_array()?.iter().flat_map(|k| k["programs"].as_array()).flatten();
    rows.find(|row| row["pid"] == pid)?["figures"]["checkpoints"].as_u64()
}

/// While this lives, a keeper takes no checkpoint, and is in the middle of none.
pub struct Halted(u32);

impl Halted {
    /// `keeper`: an own child that was not reaped; `pid`: the program that it keeps.
    pub fn new(keeper: u32, pid: i32) -> Halted {
        let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        until("it stands still between two checkpoints", || {
            // SAFETY: an own child.
            unsafe { libc::kill(keeper as i32, libc::SIGSTOP) };
            until("it stands still", || status(keeper).contains("State:\tT").then_some(()));
            // The program is traced for as long as a checkpoint takes.
            let halted = Halted(keeper);
            status(pid as u32).contains("TracerPid:\t0\n").then_some(halted)
        })
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        // SAFETY: an own child.
        unsafe { libc::kill(self.0 as i32, libc::SIGCONT) };
    }
}

pub fn count(file: &Path, event: &str) -> usize {
    events(file).iter().filter(|e| e["event"] == event).count()
}

/// True, and says so, if a program that the test needs is not installed.
pub fn lacks(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_there {
        println!("SKIP: needs {program}");
    }
    !is_there
}

/// True, and says so, where the kernel or a filter lacks what keep stands on.
pub fn lacks_tracking() -> bool {
    match orbit_linux::uffd::probe() {
        orbit_linux::Support::Yes => false,
        orbit_linux::Support::No(why) => {
            println!("SKIP: needs {why}");
            true
        }
    }
}

/// A Redis under `orbit-keep`; both are killed with it.
pub struct Redis {
    pub keeper: Child,
    pub scratch: Scratch,
    pub pid: i32,
}

impl Redis {
    /// Starts one and waits until it is kept.
    pub fn start(name: &str, options: &[&str]) -> Redis {
        Redis::start_with(name, options, &[])
    }

    /// The same, with `more` options of Redis.
    pub fn start_with(name: &str, options: &[&str], more: &[&str]) -> Redis {
        let scratch = Scratch::new(name);
        let keeper = Command::new(KEEP)
            .args(["--log", "--events"])
            .arg(scratch.join("events"))
            .args(options)
            .args(["--", "redis-server", "--port", "0", "--save", "", "--appendonly", "no"])
            // Its crash report would test all memory beside jemalloc's thread, which may crash of
            // it: see docs/limits.md.
            .args(["--crash-memcheck-enabled", "no", "--enable-debug-command", "yes", "--dir"])
            .arg(&scratch.0)
            .arg("--unixsocket")
            .arg(scratch.join("socket"))
            .arg("--logfile")
            .arg(scratch.join("log"))
            .args(more)
            .stdout(Stdio::null())
            .spawn()
            .expect("orbit-keep");
        let mut redis = Redis { keeper, scratch, pid: 0 };
        let kept =
            until("the program is kept", || events(&redis.events_file()).into_iter().find(|e| e["event"] == "kept"));
        redis.pid = kept["pid"].as_i64().expect("a number") as i32;
        until("redis answers", || redis.try_client()?.call(&["PING"]).ok().filter(|a| a == "+PONG"));
        redis
    }

    pub fn events_file(&self) -> PathBuf {
        self.scratch.join("events")
    }

    pub fn try_client(&self) -> Option<Client> {
        let stream = UnixStream::connect(self.scratch.join("socket")).ok()?;
        Some(Client::of(stream))
    }

    pub fn client(&self) -> Client {
        self.try_client().expect("redis accepts connections")
    }

    /// Waits for a checkpoint that is taken after this call.
    pub fn crash(&self) {
        let ended = self.client().call(&["DEBUG", "SEGFAULT"]);
        assert!(ended.is_err(), "the client that asks for the crash sees its connection end, not {ended:?}");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // SAFETY: an own child's child that lives until its keeper, waited for below, has reaped
        // it.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let end = Instant::now() + PATIENCE;
        while self.keeper.try_wait().ok().flatten().is_none() && Instant::now() < end {
            sleep(Duration::from_millis(10));
        }
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// One connection.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// One on this stream.
    pub fn of(stream: UnixStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        Client { stream }
    }

    /// Sends a command; returns the first line of the answer, with the bytes of a bulk answer after
    /// it.
    pub fn call(&mut self, words: &[&str]) -> io::Result<String> {
        self.send(words)?;
        self.answer()
    }

    pub fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.write_all(command.as_bytes())
    }

    fn answer(&mut self) -> io::Result<String> {
        let line = self.line()?;
        match line.strip_prefix('$').and_then(|n| n.parse::<usize>().ok()) {
            Some(len) => {
                let mut bytes = vec![0; len + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(len);
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            None => Ok(line),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            match self.stream.read(&mut byte) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) if byte[0] == b'\n' => return Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
                Ok(_) => line.push(byte[0]),
                Err(error) => return Err(error),
            }
        }
    }

    /// Increments `key`; it must answer `expected`.
    pub fn increment(&mut self, key: &str, expected: u64) {
        let answer = self.call(&["INCR", key]);
        assert_eq!(answer.expect("no error"), format!(":{expected}"), "INCR {key}");
    }
}

/// The threads of a process.
pub fn threads(pid: i32) -> Vec<i32> {
    let folder = fs::read_dir(format!("/proc/{pid}/task")).expect("alive");
    let mut tids: Vec<i32> = folder.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    tids
}
