//! Programs to inspect: built from `tests/c` with the system's compiler, run, and killed at the
//! end.
#![allow(dead_code, unused_imports, reason = "each test uses some of it")]

use orbit_testing::{Folder, compile};
pub use orbit_testing::{children, runs as have, until_some as until};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A directory of this test's own, removed at the end.
pub struct Dir(pub Folder);

impl Dir {
    pub fn new(name: &str) -> Dir {
        Dir(Folder::within(env!("CARGO_TARGET_TMPDIR").as_ref(), name))
    }

    /// Builds `tests/c/FILE` with more flags; the program's path.
    pub fn build(&self, file: &str, flags: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(file);
        let out = self.0.join(file.replace('.', "_"));
        let compiler = if file.ends_with(".cpp") { "c++" } else { "cc" };
        compile(compiler, &source, &out, &[&["-pthread"], flags].concat());
        out
    }
}

/// A program that runs until the test ends. It has a process group of its own, so that its children
/// end with it.
pub struct Running(pub Child);

impl Running {
    /// Starts it and waits for its line "ready".
    pub fn start(command: &mut Command) -> Running {
        // SAFETY: plain call. Orphans of the program come to this process, which collects them.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        let mut child = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        let mut running = Running(child);
        let mut lines = BufReader::new(out).lines();
        loop {
            match lines.next() {
                Some(Ok(l)) if l.ends_with("ready") => break,
                Some(Ok(_)) => {}
                end => {
                    let status = running.0.wait();
                    panic!("ended before it was ready: {end:?} {status:?}");
                }
            }
        }
        // Its later output would block or kill it if nobody held the other end.
        std::mem::forget(lines);
        running
    }

    pub fn program(path: &Path, args: &[&str]) -> Running {
        Running::start(Command::new(path).args(args))
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: plain call; the group was made for this program.
        unsafe { libc::kill(-self.pid(), libc::SIGKILL) };
        let _ = self.0.wait();
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer. Ends with ECHILD once the whole group
        // is collected.
        while unsafe { libc::waitpid(-self.pid(), &mut status, libc::__WALL) } > 0 {}
    }
}
