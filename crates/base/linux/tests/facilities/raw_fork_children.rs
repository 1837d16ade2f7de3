//! Raw children: with exit signal 0 a plain `waitpid` does not see them and no SIGCHLD comes; their
//! pidfd tells how they ended; they know their own thread id; CLONE_PARENT-like tricks are not
//! needed for any of it.

use orbit_linux::process::{self, raw_fork};
use orbit_linux::{pidfd, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

#[test]
fn a_plain_wait_does_not_see_the_child() {
    // SAFETY: the child only ends.
    let Some(child) = unsafe { raw_fork(0) }.expect("fork") else {
        // SAFETY: ends the child.
        unsafe { libc::_exit(7) }
    };
    let fd = child.pidfd.expect("pidfd");
    let mut polled = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    while poll::poll(&mut polled, Some(Duration::from_secs(30))).expect("poll") == 0 {}
    let mut status = 0;
    // SAFETY: asks about the own child without __WALL.
    let r = unsafe { libc::waitpid(child.pid, &raw mut status, libc::WNOHANG) };
    assert_eq!((r, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ECHILD)));
    let end = pidfd::wait(fd.as_fd(), true).expect("wait").expect("it has ended");
    assert_eq!((end.code, end.exit_status(), end.signal()), (libc::CLD_EXITED, Some(7), None));
    let e = pidfd::wait(fd.as_fd(), true).expect_err("reaped already");
    assert_eq!(e.raw_os_error(), Some(libc::ECHILD));
}

#[test]
fn a_killed_child_tells_its_signal() {
    // SAFETY: the child only sleeps.
    let Some(child) = unsafe { raw_fork(0) }.expect("fork") else {
        loop {
            // SAFETY: takes nothing.
            unsafe { libc::pause() };
        }
    };
    let fd = child.pidfd.expect("pidfd");
    assert_eq!(pidfd::wait(fd.as_fd(), true).expect("wait"), None, "still running");
    pidfd::send_signal(fd.as_fd(), libc::SIGKILL).expect("kill");
    let end = pidfd::wait(fd.as_fd(), false).expect("wait").expect("ended");
    assert_eq!((end.signal(), end.exit_status()), (Some(libc::SIGKILL), None));
    let e = pidfd::send_signal(fd.as_fd(), 0).expect_err("gone");
    assert_eq!(e.raw_os_error(), Some(libc::ESRCH));
}

#[test]
fn libc_knows_the_childs_own_thread_id() {
    // An error-checking mutex shared with the child, held by the parent: if libc in the child took
    // itself for the parent, it would answer EDEADLK ("you hold it yourself") instead of EBUSY.
    // SAFETY: plain data, initialised by the calls below before use, in a shared page.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), 4096, 3, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        let mutex = page.cast::<libc::pthread_mutex_t>();
        let mut attr: libc::pthread_mutexattr_t = std::mem::zeroed();
        libc::pthread_mutexattr_init(&raw mut attr);
        libc::pthread_mutexattr_settype(&raw mut attr, libc::PTHREAD_MUTEX_RECURSIVE);
        libc::pthread_mutexattr_setpshared(&raw mut attr, libc::PTHREAD_PROCESS_SHARED);
        assert_eq!(libc::pthread_mutex_init(mutex, &raw const attr), 0);
        assert_eq!(libc::pthread_mutex_lock(mutex), 0);
        let Some(child) = raw_fork(0).expect("fork") else {
            libc::_exit(libc::pthread_mutex_trylock(mutex));
        };
        let fd = child.pidfd.expect("pidfd");
        let end = pidfd::wait(fd.as_fd(), false).expect("wait").expect("ended");
        libc::munmap(page, 4096);
        assert_eq!(end.exit_status(), Some(libc::EBUSY));
    }
}

#[test]
fn a_child_has_one_thread_and_only_what_it_keeps() {
    let keep = [std::fs::File::open("/dev/null").expect("open"), std::fs::File::open("/dev/null").expect("open")];
    let drop_me = std::fs::File::open("/dev/null").expect("open");
    let keep_fds = [keep[1].as_raw_fd(), keep[0].as_raw_fd(), keep[1].as_raw_fd(), -1];
    let gone = drop_me.as_raw_fd();
    // SAFETY: the child makes system calls only and ends.
    let Some(child) = unsafe { raw_fork(0) }.expect("fork") else {
        process::close_all_but(&keep_fds);
        // SAFETY: F_GETFD only reads.
        let open = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1;
        let right = open(keep_fds[0]) && open(keep_fds[1]) && !open(gone) && !open(0) && !open(1) && !open(2);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!right)) };
    };
    let fd = child.pidfd.expect("pidfd");
    assert_eq!(pidfd::wait(fd.as_fd(), false).expect("wait").and_then(|e| e.exit_status()), Some(0));
    drop(drop_me);
}

#[test]
fn signals_out_of_range_are_refused() {
    for sig in [-1, 65, i32::MAX] {
        // SAFETY: rejected before anything is made.
        let e = unsafe { raw_fork(sig) }.expect_err("no such signal");
        assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn threads_are_counted() {
    let before = process::thread_count().expect("count");
    let (tx, rx) = std::sync::mpsc::channel::<()>();
    let t = std::thread::spawn(move || {
        let _ = rx.recv();
    });
    // Other tests come and go beside this one: there are at least two threads now.
    assert!(before >= 1 && process::thread_count().expect("count") >= 2);
    drop(tx);
    t.join().expect("join");
}
