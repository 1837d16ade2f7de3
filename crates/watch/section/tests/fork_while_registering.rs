//! A child that is forked while other threads use the library, for the first time too, continues.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FORKS: usize = 400;
const LIMIT: Duration = Duration::from_secs(60);

/// Forks a child that registers a section; true: it did. One that hangs is killed.
fn child_registers() -> bool {
    // SAFETY: the child registers, which waits for no thread that it has not, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let known = orbit_section::register(b"n50").is_some();
        // SAFETY: ends the child without running anything else.
        unsafe { libc::_exit(i32::from(!known)) }
    }
    let (start, mut status) = (Instant::now(), 0);
    // SAFETY: our own child, and a valid place for the answer.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if start.elapsed() > LIMIT {
            // SAFETY: our own child, not reaped yet.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &raw mut status, 0);
            }
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    status == 0
}

#[test]
fn a_child_registers_whatever_the_parent_s_threads_are_at() {
    static STOP: AtomicBool = AtomicBool::new(false);
    for n in 0..100 {
        orbit_section::register(format!("n{n}").as_bytes());
    }
    let other = std::thread::spawn(|| {
        while !STOP.load(Ordering::Relaxed) {
            orbit_section::register(b"n99");
        }
    });
    let hung = (0..FORKS).find(|_| !child_registers());
    STOP.store(true, Ordering::Relaxed);
    other.join().expect("the other thread");
    assert_eq!(hung, None, "the number of the fork whose child hangs");
}
