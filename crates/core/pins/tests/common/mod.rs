//! What the tests share: conditions with a generous limit, children that end with the test, skips
//! that say why.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

use orbit_rmk::{Client, Event};
pub use orbit_testing::{PATIENCE as LIMIT, until};
use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// True if this process may load kernel programs; else prints why the test is skipped.
pub fn kernel_programs_or_skip() -> bool {
    let core = orbit_pins::core().expect("a core");
    let able =
        core.pins().into_iter().find(|pin| pin.name == "P_SCHL").is_some_and(|pin| pin.probe == orbit_rmk::Probe::Full);
    if !able {
        println!("SKIP: needs kernel programs (root, or CAP_BPF and CAP_PERFMON)");
    }
    able
}

/// A child that is killed and reaped when the test lets go of it.
pub struct Guest(pub Child);

impl Guest {
    /// Runs a shell script with a pipe on its standard input.
    pub fn shell(script: &str) -> Guest {
        Guest(Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh"))
    }
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Forks a child that runs `body` and exits; it is killed when the test lets go of it. `body` must
/// not need locks that other threads of the test may hold: plain system calls and memory only.
pub struct Forked(pub i32);

impl Forked {
    pub fn new(body: impl FnOnce()) -> Forked {
        // SAFETY: the child runs `body`, which by contract takes no locks, and leaves by _exit.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: the child dies with the thread that made it; no pointers are passed.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                body();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) }
            }
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            pid => Forked(pid),
        }
    }
    pub fn pid(&self) -> u32 {
        self.0 as u32
    }
    /// Waits for its end; gives the wait status.
    pub fn wait(mut self) -> i32 {
        let mut status = 0;
        // SAFETY: `status` lives for the call; the child is our own and not reaped yet.
        unsafe { libc::waitpid(self.0, &mut status, 0) };
        self.0 = 0;
        status
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if self.0 > 0 {
            // SAFETY: the pid is our own child's, not reaped yet, so it is not shared.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// A gate that a forked child waits at until the test opens it, once for each passage.
pub struct Gate([i32; 2]);

impl Gate {
    pub fn new() -> Gate {
        let mut ends = [0; 2];
        // SAFETY: two descriptors are written to a live array.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        Gate(ends)
    }
    pub fn open(&self) {
        // SAFETY: one byte is read from a live local.
        assert_eq!(unsafe { libc::write(self.0[1], [1u8].as_ptr().cast(), 1) }, 1);
    }
    /// Called by the child.
    pub fn pass(&self) {
        let mut byte = 0u8;
        // SAFETY: one byte is written to a live local.
        unsafe { libc::read(self.0[0], (&raw mut byte).cast(), 1) };
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        for end in self.0 {
            // SAFETY: the gate's own descriptors, closed once.
            unsafe { libc::close(end) };
        }
    }
}

/// Gives the calling thread descriptors of its own, and leaves it none to open.
pub fn use_up_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls take one live struct or numbers; the copies of stderr are not shared and
    // end with the thread.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_FILES), 0);
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(1024);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        while libc::dup(2) >= 0 {}
    }
}

/// Takes events until one is as wanted; gives it.
pub fn event(client: &Client, what: &str, mut wanted: impl FnMut(&Event) -> bool) -> Event {
    let start = Instant::now();
    let mut events = Vec::new();
    loop {
        events.clear();
        client.wait(4096, Duration::from_millis(100), &mut events);
        if let Some(found) = events.iter().find(|event| wanted(event)) {
            return *found;
        }
        assert!(start.elapsed() < LIMIT, "no such event within {LIMIT:?}: {what}");
    }
}

/// Takes what waits, without waiting.
pub fn take_all(client: &Client) -> Vec<Event> {
    let mut events = Vec::new();
    while client.wait(4096, Duration::ZERO, &mut events) > 0 {}
    events
}
