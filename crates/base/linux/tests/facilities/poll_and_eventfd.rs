//! An event counter polls readable from its first signal until it is drained.

use orbit_linux::{eventfd, poll};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

#[test]
fn signals_add_up_and_drain() {
    let fd = eventfd::create().expect("eventfd");
    let mut polled = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    assert_eq!(poll::poll(&mut polled, Some(Duration::ZERO)).expect("poll"), 0);
    for _ in 0..3 {
        eventfd::signal(fd.as_fd());
    }
    assert_eq!(poll::poll(&mut polled, None).expect("poll"), 1);
    assert_eq!(polled[0].revents, libc::POLLIN);
    assert_eq!((eventfd::drain(fd.as_fd()), eventfd::drain(fd.as_fd())), (3, 0));
    assert_eq!(poll::poll(&mut polled, Some(Duration::ZERO)).expect("poll"), 0);
}

#[test]
fn a_timeout_is_not_cut_short() {
    let begun = Instant::now();
    assert_eq!(poll::poll(&mut [], Some(Duration::from_millis(15))).expect("poll"), 0);
    assert!(begun.elapsed() >= Duration::from_millis(15));
}
