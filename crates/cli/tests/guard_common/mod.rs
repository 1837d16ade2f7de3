//! Running the guard on small C programs and reading what it reports.
#![allow(dead_code, reason = "each test uses a part")]

pub mod browser;

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

pub use orbit_testing::PATIENCE;

/// A directory of this test's own, removed at the end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("guard-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Dir(dir)
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child that is killed and reaped when the test lets go of it.
pub struct Owned(pub Child);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls until there is an answer.
pub fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Why these tests cannot run here, if so; prints it.
pub fn skipped() -> bool {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("SKIP: needs cc");
        return true;
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if matches!(scope.trim(), "2" | "3") {
        println!("SKIP: needs kernel.yama.ptrace_scope below 2");
        return true;
    }
    false
}

/// Builds a program of `tests/c`.
pub fn build(dir: &Dir, source: &str) -> PathBuf {
    let out = dir.0.join(source.trim_end_matches(".c"));
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let built = Command::new("cc").args(["-O2", "-g", "-pthread", "-o"]).arg(&out).arg(source).status().expect("cc");
    assert!(built.success());
    out
}

/// A guard that runs; killed with its program when dropped.
pub struct Guard {
    child: Child,
    events: PathBuf,
    read: usize,
}

impl Guard {
    /// Starts `orbit watch OPTIONS --events FILE -- PROGRAM`.
    pub fn start(dir: &Dir, options: &[&str], program: &[&str]) -> Guard {
        Guard::start_saying(dir, options, program, Stdio::piped())
    }

    /// The same, with another stderr: the pipe of [`Guard::start`] is read at the end only, and
    /// what the guard reports waits while it is full.
    pub fn start_saying(dir: &Dir, options: &[&str], program: &[&str], stderr: Stdio) -> Guard {
        Guard::start_by(dir, Command::new(env!("CARGO_BIN_EXE_orbit")), options, program, stderr)
    }

    /// The same by a command that becomes `orbit` with the arguments that it is given.
    pub fn start_by(dir: &Dir, mut orbit: Command, options: &[&str], program: &[&str], stderr: Stdio) -> Guard {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let events = dir.0.join(format!("events-{n}.jsonl"));
        let child = orbit
            .arg("watch")
            .args(options)
            .arg("--events")
            .arg(&events)
            .arg("--")
            .args(program)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("orbit");
        Guard { child, events, read: 0 }
    }

    pub fn id(&self) -> i32 {
        self.child.id() as i32
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.events).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let read = |l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"));
        whole.lines().map(|l| orbit_testing::described("watch-events", read(l))).collect()
    }

    /// Waits for the next event of this name.
    pub fn next(&mut self, name: &str) -> Value {
        let start = Instant::now();
        loop {
            let all = self.events();
            while self.read < all.len() {
                self.read += 1;
                if all[self.read - 1]["event"] == name {
                    return all[self.read - 1].clone();
                }
            }
            assert!(start.elapsed() < PATIENCE, "no event `{name}`; events: {all:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The program's process.
    pub fn program(&mut self) -> i32 {
        self.next("joined")["pid"].as_i64().expect("a pid") as i32
    }

    /// Once the guard knows the loop of a program that leaves it at SIGUSR1: has it do so. The
    /// program's process.
    pub fn leave_loop(&mut self) -> i32 {
        let pid = self.next("learnt")["pid"].as_i64().expect("a pid") as i32;
        signal(pid, libc::SIGUSR1);
        pid
    }

    /// Asserts that nothing was reported to hang.
    pub fn no_hang(&self) {
        for e in self.events() {
            assert_ne!(e["event"], "hang", "false alarm: {e:#}");
        }
    }

    /// Waits for the guard's end, whoever still has its output.
    pub fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the guard does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the end.
    pub fn finish(mut self) -> Output {
        let mut out = Output { status: self.ended(), stdout: Vec::new(), stderr: Vec::new() };
        use std::io::Read;
        self.child.stdout.take().map(|mut o| o.read_to_end(&mut out.stdout));
        self.child.stderr.take().map(|mut e| e.read_to_end(&mut out.stderr));
        out
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let pids: std::collections::BTreeSet<i64> =
            self.events().iter().filter(|e| e["event"] == "joined").filter_map(|e| e["pid"].as_i64()).collect();
        if matches!(self.child.try_wait(), Ok(None)) {
            // While the guard lives its program is not reaped, so the numbers are still those of
            // the program.
            for pid in pids {
                signal(pid as i32, libc::SIGKILL);
            }
            let start = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub fn signal(pid: i32, sig: i32) {
    // SAFETY: plain call with numbers.
    unsafe { libc::kill(pid, sig) };
}

/// Functions in the stack of the first thread of a hang.
pub fn functions(hang: &Value) -> Vec<String> {
    hang["stacks"][0]["frames"]
        .as_array()
        .expect("frames")
        .iter()
        .filter_map(|f| f["function"].as_str().map(str::to_owned))
        .collect()
}
