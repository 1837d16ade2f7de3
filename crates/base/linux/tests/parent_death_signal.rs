//! A grandchild that asked for it dies with its parent.

use orbit_linux::process::{raw_fork, set_parent_death_signal};
use orbit_linux::{pidfd, socket};
use std::os::fd::AsFd;

#[test]
fn it_fires_when_the_parent_ends() {
    let (ours, theirs) = socket::pair().expect("socket pair");
    // SAFETY: both children make system calls only.
    let Some(middle) = unsafe { raw_fork(0) }.expect("fork") else {
        // SAFETY: as above.
        match unsafe { raw_fork(0) } {
            Ok(None) => {
                let armed = set_parent_death_signal(libc::SIGKILL).is_ok();
                let _ = socket::send(theirs.as_fd(), &[u8::from(armed)], &[]);
                loop {
                    // SAFETY: takes nothing.
                    unsafe { libc::pause() };
                }
            }
            Ok(Some(_)) => loop {
                // SAFETY: takes nothing.
                unsafe { libc::pause() };
            },
            // SAFETY: ends the child.
            Err(_) => unsafe { libc::_exit(1) },
        }
    };
    drop(theirs);
    let mut buf = [0; 1];
    assert_eq!(socket::receive(ours.as_fd(), &mut buf, &mut Vec::new(), false).expect("receive"), 1);
    assert_eq!(buf, [1], "armed");
    let fd = middle.pidfd.expect("pidfd");
    pidfd::send_signal(fd.as_fd(), libc::SIGKILL).expect("kill");
    pidfd::wait(fd.as_fd(), false).expect("wait");
    // The grandchild held the last copy of the other end: its end is the socket's end.
    assert_eq!(socket::receive(ours.as_fd(), &mut buf, &mut Vec::new(), false).expect("receive"), 0);
}
