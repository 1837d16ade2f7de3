//! A descriptor of another process can be duplicated; whether two threads share memory is known, or
//! an error. The first pid namespace is known.

use orbit_linux::process::{RawChild, end, raw_fork, same_memory};
use orbit_linux::{pidfd, procfs, socket};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A child that only sleeps; it ends when this is dropped.
struct Sleeper {
    pid: i32,
    fd: OwnedFd,
}

impl Sleeper {
    fn start() -> Sleeper {
        // SAFETY: the child makes system calls only.
        let Some(RawChild { pid, pidfd }) = unsafe { raw_fork(0) }.expect("fork") else {
            // SAFETY: takes nothing.
            unsafe { libc::pause() };
            end(0)
        };
        Sleeper { pid, fd: pidfd.expect("pidfd") }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = pidfd::send_signal(self.fd.as_fd(), libc::SIGKILL);
        let _ = pidfd::wait(self.fd.as_fd(), false);
    }
}

/// Whether the kernel answers at all: rules of a container reject both.
fn allowed<T>(answer: io::Result<T>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
            println!("SKIP: needs kcmp and pidfd_getfd ({e})");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_descriptor_of_a_child() {
    let (ours, childs) = socket::pair().expect("pair");
    let child = Sleeper::start();
    let number = childs.as_raw_fd();
    drop(childs);
    let Some(copy) = allowed(pidfd::duplicate(child.fd.as_fd(), number)) else { return };
    // SAFETY: F_GETFD only reads.
    assert_ne!(unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_GETFD) } & libc::FD_CLOEXEC, 0);
    socket::send(copy.as_fd(), b"here", &[]).expect("send");
    let mut bytes = [0; 8];
    assert_eq!(socket::receive(ours.as_fd(), &mut bytes, &mut Vec::new(), true).expect("receive"), 4);
    let none = pidfd::duplicate(child.fd.as_fd(), 1 << 20).expect_err("no such descriptor");
    assert_eq!(none.raw_os_error(), Some(libc::EBADF));
}

#[test]
fn threads_share_memory_and_processes_do_not() {
    let pid = std::process::id() as i32;
    // SAFETY: plain call.
    let tid = unsafe { libc::gettid() };
    let Some(same) = allowed(same_memory(pid, tid)) else { return };
    assert!(same, "threads of one process");
    let child = Sleeper::start();
    assert!(!same_memory(pid, child.pid).expect("an own child"));
    let gone = child.pid;
    drop(child);
    assert_eq!(same_memory(pid, gone).map_err(|e| e.raw_os_error()), Err(Some(libc::ESRCH)), "no answer is no `false`");
}

#[test]
fn the_first_pid_namespace_has_its_number() {
    let own = std::fs::read_link("/proc/self/ns/pid").expect("own namespace");
    assert_eq!(procfs::in_first_pid_namespace(), own.as_os_str() == "pid:[4026531836]");
}
