//! The program whose function is counted, and waiting for probes.
#![allow(dead_code, reason = "each test uses a part")]

use orbit_uprobe::code::shape;
use orbit_uprobe::{Duty, State, Target};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Program {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    pub file: PathBuf,
    pub start: u64,
    pub address: u64,
    pub code: Vec<u8>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

impl Program {
    /// Builds and starts a program of `tests/c`.
    pub fn start(name: &str, source: &str) -> Program {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        let built = Command::new("cc").args(["-O1", "-o"]).arg(&file).arg(source).status().expect("cc");
        assert!(built.success());
        let mut child = Command::new(&file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
        let to = child.stdin.take().expect("a pipe");
        let mut from = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        from.read_line(&mut line).expect("an address");
        let hex = |text: &str| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).expect("a number");
        let address = hex(&line);
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("maps");
        let start = maps
            .lines()
            .find_map(|l| {
                let f: Vec<&str> = l.split_ascii_whitespace().collect();
                let (low, high) = f[0].split_once('-')?;
                (hex(low)..hex(high)).contains(&address).then(|| address - hex(low) + hex(f[2]))
            })
            .expect("its mapping");
        let nm = Command::new("nm").arg("-S").arg(&file).output().expect("nm").stdout;
        let nm = String::from_utf8(nm).expect("text");
        let size = nm.lines().find(|l| l.ends_with(" counted")).and_then(|l| l.split(' ').nth(1)).map(hex);
        let size = size.expect("its size") as usize;
        let bytes = std::fs::read(&file).expect("the program");
        let code = bytes[start as usize..start as usize + size].to_vec();
        Program { child, to, from, file, start, address, code }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn target(&self) -> Target {
        // Neither program has a `switch`.
        let shape = shape(&self.code, true, self.address, &|_, _| Vec::new());
        Target { pid: self.pid(), file: self.file.clone(), start: self.start, shape, callers: false }
    }

    /// Has it call the function so often in this way, and waits until it has.
    pub fn run(&mut self, how: u32, times: u64) {
        writeln!(self.to, "{how} {times}").expect("a reader");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("an answer");
        assert_eq!(line, "done\n");
    }
}

/// Probes at work; nothing, with a line that says so, where they cannot be had.
pub fn duty(bound: Option<f64>) -> Option<Duty> {
    let duty = Duty::start(bound);
    let start = Instant::now();
    loop {
        match duty.state() {
            State::Ready(_) => return Some(duty),
            State::Failed(e) => {
                println!("SKIP: needs uprobes ({e})");
                return None;
            }
            State::Starting => assert!(start.elapsed() < PATIENCE, "the kernel half is not loaded"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let start = Instant::now();
    while !true_now() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
