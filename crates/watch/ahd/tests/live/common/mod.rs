//! Programs to watch: built from `tests/live/c` with the system's compiler, run, and killed at the
//! end; and a watcher for them.
#![allow(dead_code, reason = "each test uses some of it")]

use orbit_ahd::{Config, Event, Hang, Sure};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for anything, on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A directory of this test's own, removed at the end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{nth}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a directory");
        Dir(dir)
    }

    /// Builds `tests/live/c/fares.c`; nothing, and a line that says so, where there is no compiler.
    pub fn program(&self) -> Option<PathBuf> {
        self.built(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/c/fares.c"))
    }

    /// Builds a program of this name from its C text; nothing, and a line that says so, where there
    /// is no compiler.
    pub fn build(&self, name: &str, text: &str) -> Option<PathBuf> {
        let source = self.0.join(name).with_extension("c");
        std::fs::write(&source, text).expect("a file");
        self.built(&source)
    }

    fn built(&self, source: &Path) -> Option<PathBuf> {
        let program = self.0.join(source.file_stem().expect("a name"));
        match Command::new("cc").args(["-O2", "-g", "-pthread", "-o"]).arg(&program).arg(source).status() {
            Ok(status) => {
                assert!(status.success(), "{} does not build", source.display());
                Some(program)
            }
            Err(_) => {
                println!("SKIP: needs cc");
                None
            }
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the tool can be run.
pub fn have(tool: &str, arg: &str) -> bool {
    let there = Command::new(tool).arg(arg).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|s| s.success());
    if !there {
        println!("SKIP: needs {tool}");
    }
    there
}

/// A program that runs until the test ends.
pub struct Program(pub Child);

impl Program {
    pub fn start(command: &mut Command) -> Program {
        Program(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the program"))
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: plain call with numbers, on the child started above, which is not reaped before
        // the end.
        unsafe { libc::kill(self.pid(), signal) };
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A watcher with all it has reported.
pub struct Watcher {
    pub ahd: orbit_ahd::Watcher,
    pub events: Vec<Event>,
}

impl Watcher {
    pub fn of(pid: i32, config: Config) -> Watcher {
        let mut ahd = orbit_ahd::Watcher::new(config);
        ahd.add(pid).expect("the program");
        Watcher { ahd, events: Vec::new() }
    }

    /// One scan, when it is due.
    pub fn scan(&mut self) {
        std::thread::sleep(self.ahd.pause());
        let new = self.ahd.tick();
        for e in &new {
            match e {
                Event::Hang(h) => println!("hang: {} ({})", h.why, h.sure),
                other => println!("{other:?}"),
            }
        }
        self.events.extend(new);
    }

    /// Scans for so long.
    pub fn run(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.scan();
        }
    }

    /// Scans until the condition holds.
    pub fn until(&mut self, what: &str, is: impl Fn(&[Event]) -> bool) {
        let start = Instant::now();
        while !is(&self.events) {
            assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
            self.scan();
        }
    }

    /// Scans until the loop of the program's first thread is known, however slow the machine is.
    pub fn learns(&mut self, pid: i32) {
        self.until("the loop to be known", |all| {
            all.iter().any(|e| matches!(e, Event::Learnt { tid, .. } if *tid == pid))
        });
    }

    pub fn hangs(&self) -> Vec<&Hang> {
        let hangs = self.events.iter().filter_map(|e| match e {
            Event::Hang(h) => Some(&**h),
            _ => None,
        });
        hangs.collect()
    }

    /// The first hang, waited for.
    pub fn hang(&mut self) -> &Hang {
        self.until("a hang", |all| all.iter().any(|e| matches!(e, Event::Hang(_))));
        self.hangs()[0]
    }

    /// Nothing was reported that is more than a guess.
    pub fn quiet(&self) {
        let sure: Vec<&Hang> = self.hangs().into_iter().filter(|hang| hang.sure > Sure::Guess).collect();
        assert!(sure.is_empty(), "false alarm: {sure:#?}");
    }
}

/// Tries all cases at the same time, for most of a case is waiting.
pub fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, one: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            let one = &one;
            scope.spawn(move || one(case));
        }
    });
}

/// CPU time of a thread of another process or of the calling process, from `schedstat`.
pub fn cpu(pid: i32, tid: i32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap_or_default();
    let run = text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    Duration::from_nanos(run)
}

/// Functions in the stack of the thread first named.
pub fn functions(hang: &Hang) -> Vec<&str> {
    hang.threads[0].stack.iter().filter_map(|f| f.function.as_deref()).collect()
}
