//! A futex in shared memory: a child's wake ends the parent's wait, values that differ end it at
//! once, time ends it.

use orbit_linux::map::Mapping;
use orbit_linux::process::raw_fork;
use orbit_linux::{futex, memfd, pidfd};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_child_wakes_its_parent() {
    let fd = memfd::create("word", 4096, true).expect("memfd");
    let m = Mapping::shared(fd.as_fd(), 4096, true, true).expect("mapping");
    // SAFETY: the first word of a live shared mapping, used as an atomic only.
    let word = unsafe { &*m.as_ptr().cast::<AtomicU32>() };
    // SAFETY: the child sleeps, stores, wakes and ends.
    let Some(child) = unsafe { raw_fork(0) }.expect("fork") else {
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 30_000_000 };
        // SAFETY: plain system calls.
        unsafe { libc::nanosleep(&raw const pause, std::ptr::null_mut()) };
        word.store(1, Ordering::Release);
        futex::wake(word, i32::MAX);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    };
    let give_up = Instant::now() + Duration::from_secs(30);
    while word.load(Ordering::Acquire) == 0 {
        assert!(Instant::now() < give_up, "never woken");
        futex::wait(word, 0, Some(Duration::from_secs(30))).expect("wait");
    }
    let pidfd = child.pidfd.expect("pidfd");
    assert_eq!(pidfd::wait(pidfd.as_fd(), false).expect("wait").and_then(|e| e.exit_status()), Some(0));
}

#[test]
fn a_wait_ends_by_time_or_by_value() {
    let word = AtomicU32::new(3);
    futex::wait(&word, 4, None).expect("another value: no wait");
    let begun = Instant::now();
    let e = futex::wait(&word, 3, Some(Duration::from_millis(20))).expect_err("time");
    assert_eq!(e.raw_os_error(), Some(libc::ETIMEDOUT));
    assert!(begun.elapsed() >= Duration::from_millis(20));
    assert_eq!(futex::wake(&word, 1), 0, "nobody sleeps there");
}
