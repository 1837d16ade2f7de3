//! Affinity, niceness, run time and limits: what is set is what is read back, in a child so that
//! nothing stays.

use orbit_linux::pidfd;
use orbit_linux::process::raw_fork;
use orbit_linux::rlimit::{self, Resource};
use orbit_linux::sched;
use std::os::fd::AsFd;

/// Runs `work` in a child; its answer names the step that failed, 0 if none.
fn in_child(work: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the children below make system calls and small allocations; no other thread of this
    // test holds malloc's lock for longer than a moment, and glibc's arenas of this thread are its
    // own.
    let Some(child) = unsafe { raw_fork(0) }.expect("fork") else {
        let answer = work();
        // SAFETY: ends the child.
        unsafe { libc::_exit(answer) };
    };
    pidfd::wait(child.pidfd.expect("pidfd").as_fd(), false).expect("wait").and_then(|e| e.exit_status())
}

#[test]
fn what_is_set_is_read_back() {
    let allowed = sched::affinity(0).expect("affinity");
    let (soft, _) = rlimit::get(0, Resource::Files).expect("files");
    let one = [*allowed.last().expect("at least one")];
    assert_eq!(
        in_child(|| {
            if sched::set_affinity(0, &one).is_err() || sched::nice(0).is_err() {
                return 1;
            }
            if sched::set_nice(0, 7).is_err() || sched::nice(0).ok() != Some(7) {
                return 2;
            }
            if rlimit::set(0, Resource::Files, soft.min(64), soft.min(64)).is_err()
                || rlimit::get(0, Resource::Files).ok() != Some((soft.min(64), soft.min(64)))
            {
                return 3;
            }
            i32::from(sched::set_idle(0).is_err()) * 4
        }),
        Some(0)
    );
    assert_eq!(sched::affinity(0).expect("affinity"), allowed, "the parent's stays");
}

#[test]
fn a_core_limit_above_the_hard_one_is_refused() {
    let e = rlimit::set(0, Resource::Core, 2, 1).expect_err("soft above hard");
    assert_eq!(e.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn run_time_grows() {
    if let Some(why) = sched::probe().reason() {
        println!("SKIP: needs schedstat: {why}");
        return;
    }
    // SAFETY: reads numbers.
    let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
    let before = sched::schedstat(pid, tid).expect("schedstat");
    let give_up = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while sched::schedstat(pid, tid).expect("schedstat").run_ns <= before.run_ns {
        assert!(std::time::Instant::now() < give_up, "never grew");
    }
}
