//! A child that a task forks is no orbit, also if it comes back out of the task. One that is left
//! running when the orbit ends may end by itself for a moment, then it is killed.

use std::ffi::{CString, c_long, c_void};
use std::path::Path;
use std::time::{Duration, Instant};

use orbit::{Orbit, Outcome};

/// Gives 1; its child, first, 1234.
unsafe extern "C" fn forks(_: *mut c_void, _: *mut c_void) -> c_long {
    // SAFETY: the child is that of a single thread, and allocates nothing here.
    let child = unsafe { libc::fork() };
    if child == 0 {
        return 1234;
    }
    let mut status = 0;
    // SAFETY: waits for the child just made, with a place for its status.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    c_long::from(ended == child && status == 0)
}

#[test]
fn a_child_that_returns_answers_no_call() {
    let orbit = Orbit::new("forking", forks).expect("orbit");
    for _ in 0..20 {
        assert_eq!(orbit.call(&[], &[]).expect("call"), Outcome::Returned(1));
    }
    assert_eq!(orbit.stats().restarts, 0);
}

/// Leaves a child that makes the file it is given a twentieth of a second after this process has
/// ended, and one that never ends; gives the number of the latter.
unsafe extern "C" fn leaves(_: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: the children are those of a single thread, and make system calls only; a name that
    // ends with a zero was passed.
    unsafe {
        let task = libc::getpid();
        if libc::fork() == 0 {
            while libc::getppid() == task {
                libc::usleep(1000);
            }
            libc::usleep(50_000);
            libc::close(libc::creat(args.cast(), 0o600));
            libc::_exit(0);
        }
        let stays = libc::fork();
        if stays == 0 {
            loop {
                libc::pause();
            }
        }
        c_long::from(stays)
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_left_running_may_end_by_itself_for_a_moment() {
    let file = std::env::temp_dir().join(format!("orbit-left-running-{}", std::process::id()));
    // The moment is half a second: on a loaded machine the twentieth of one that the child takes
    // may be longer than that.
    let made = (0..3).any(|_| {
        leave_running(&file);
        file.exists()
    });
    assert!(made, "the one that ends by itself was killed, three times");
    std::fs::remove_file(&file).expect("it is there");
}

/// Has an orbit leave two children, of which one makes this file, and waits until the one that
/// stays is ended.
fn leave_running(file: &Path) {
    let name = CString::new(file.to_str().expect("text")).expect("no zeros");
    let orbit = Orbit::new("leaving", leaves).expect("orbit");
    let Outcome::Returned(stays) = orbit.call(&[], name.as_bytes_with_nul()).expect("call") else {
        panic!("it returns");
    };
    drop(orbit);
    // SAFETY: plain call.
    until("the one that stays is not ended", || unsafe { libc::kill(stays as i32, 0) } == -1);
}
