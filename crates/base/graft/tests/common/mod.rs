//! Programs to enter: built from `tests/c` with the system's compiler, run, and killed at the end.
#![allow(dead_code, unused_imports, reason = "each test uses some of it")]

use graft::Process;
use orbit_testing::{Folder, compile};
pub use orbit_testing::{field, has as have, is_full as full, until};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// A directory of this test's own, removed at the end.
pub struct Dir(pub Folder);

impl Dir {
    pub fn new(name: &str) -> Dir {
        Dir(Folder::within(env!("CARGO_TARGET_TMPDIR").as_ref(), name))
    }

    /// Builds `tests/c/FILE` with a compiler and more flags.
    pub fn build(&self, compiler: &str, file: &str, flags: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(file);
        let out = self.0.join(format!("{compiler}-{file}{}", flags.concat()).replace(['.', '/', '='], "_"));
        compile(compiler, &source, &out, &[&["-O2", "-pthread"], flags].concat());
        out
    }
}

/// Whether this process may trace another, and how if not.
pub fn may_trace() -> bool {
    match orbit_linux::ptrace::probe() {
        orbit_linux::Support::Yes => true,
        orbit_linux::Support::No(why) => {
            println!("SKIP: needs {why}");
            false
        }
    }
}

/// A program of `subject.c`, or one with the same state, that runs until the test ends.
pub struct Subject {
    pub child: Child,
    /// `None`: closed.
    pub input: Option<ChildStdin>,
    pub process: Process,
    state: u64,
}

/// What the program notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub rounds: u64,
    pub wrong: u64,
    pub done: bool,
    pub result: i64,
    pub error: i64,
    pub milliseconds: u64,
    pub handled: u64,
    pub threads: u64,
    pub started: bool,
}

impl Subject {
    pub fn start(command: &mut Command) -> Subject {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
        let input = child.stdin.take();
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_suffix(" ready").unwrap_or_else(|| panic!("not ready: {line:?}"));
        let state = u64::from_str_radix(address, 16).expect("an address");
        let process = Process::find(child.id() as i32).expect("a process");
        Subject { child, input, process, state }
    }

    pub fn program(path: &Path, arguments: &[&str]) -> Subject {
        Subject::start(Command::new(path).args(arguments))
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn state(&self) -> State {
        let mut bytes = [0u8; 72];
        self.process.read(self.state, &mut bytes).expect("the program's state");
        let w = |i: usize| u64::from_ne_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("eight"));
        State {
            rounds: w(0),
            wrong: w(1),
            done: w(2) != 0,
            result: w(3) as i64,
            error: w(4) as i64,
            milliseconds: w(5),
            handled: w(6),
            threads: w(7),
            started: w(8) != 0,
        }
    }

    /// Waits until its main thread sleeps in a call.
    pub fn is_in_its_call(&self) {
        until("it is in its call", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("a stat");
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')) && self.state().started
        });
    }

    /// Has the call that it is in end.
    pub fn end_the_call(&mut self) {
        self.input.as_mut().expect("an open input").write_all(b"end\n").expect("a line");
    }

    /// The same, once it has ended and the program computes.
    pub fn ended(mut self) -> Subject {
        self.end_the_call();
        until("the call ends", || self.state().done);
        self
    }

    /// It computes on, and right.
    pub fn is_unharmed(&self) {
        let gone = || panic!("the program has ended: {}", self.status());
        if field(&self.status(), "State").starts_with(['Z', 'X']) {
            gone();
        }
        let before = self.state().rounds;
        until("it continues to compute", || self.state().rounds > before + 3);
        assert_eq!(self.state().wrong, 0, "a computation went wrong");
        let status = self.status();
        assert_eq!(field(&status, "TracerPid"), "0");
    }

    pub fn status(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a status")
    }

    /// What a graft may change: mappings, descriptors, masks and handlers of signals.
    pub fn outside(&self) -> Outside {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("maps");
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .expect("descriptors")
            .map(|entry| {
                let path = entry.expect("a descriptor").path();
                (path.clone(), std::fs::read_link(path).unwrap_or_default())
            })
            .collect();
        let mut masks = BTreeSet::new();
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("threads") {
            let Ok(status) = std::fs::read_to_string(task.expect("a thread").path().join("status")) else { continue };
            masks.insert((field(&status, "Pid").to_owned(), field(&status, "SigBlk").to_owned()));
        }
        let status = self.status();
        let handlers = ["SigIgn", "SigCgt"].map(|name| field(&status, name).to_owned());
        Outside { maps, descriptors, masks, handlers }
    }
}

/// See [`Subject::outside`].
#[derive(Debug, PartialEq, Eq)]
pub struct Outside {
    pub maps: String,
    pub descriptors: BTreeSet<(PathBuf, PathBuf)>,
    pub masks: BTreeSet<(String, String)>,
    pub handlers: [String; 2],
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
