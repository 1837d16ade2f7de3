//! Messages keep their bounds, descriptors arrive close-on-exec, what is too large is lost without
//! a leak, and the peer's end shows as 0.

use orbit_linux::{eventfd, socket};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

#[test]
fn messages_and_descriptors_arrive_whole() {
    let (a, b) = socket::pair().expect("pair");
    let events: Vec<OwnedFd> = (0..socket::MAX_FDS).map(|_| eventfd::create().expect("eventfd")).collect();
    let fds: Vec<_> = events.iter().map(AsFd::as_fd).collect();
    socket::send(a.as_fd(), b"one", &[]).expect("send");
    socket::send(a.as_fd(), b"fourteen bytes", &fds).expect("send");
    let (mut buf, mut got) = ([0; 64], Vec::new());
    assert_eq!(socket::receive(b.as_fd(), &mut buf, &mut got, true).expect("receive"), 3);
    assert!(got.is_empty());
    assert_eq!(socket::receive(b.as_fd(), &mut buf, &mut got, true).expect("receive"), 14);
    assert_eq!((&buf[..14], got.len()), (&b"fourteen bytes"[..], socket::MAX_FDS));
    eventfd::signal(got[5].as_fd());
    assert_eq!(eventfd::drain(events[5].as_fd()), 1, "the sixth is the sixth");
    // SAFETY: F_GETFD only reads.
    assert!(got.iter().all(|fd| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) } & libc::FD_CLOEXEC != 0));
    let e = socket::receive(b.as_fd(), &mut buf, &mut got, true).expect_err("nothing more");
    assert_eq!(e.kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_message_longer_than_the_buffer_is_an_error() {
    let (a, b) = socket::pair().expect("pair");
    let event = eventfd::create().expect("eventfd");
    socket::send(a.as_fd(), &[1; 100], &[event.as_fd()]).expect("send");
    socket::send(a.as_fd(), &[2; 10], &[]).expect("send");
    let (mut buf, mut got) = ([0; 50], Vec::new());
    let e = socket::receive(b.as_fd(), &mut buf, &mut got, true).expect_err("too long");
    assert_eq!((e.kind(), got.len()), (ErrorKind::InvalidData, 0), "{e}");
    assert_eq!(socket::receive(b.as_fd(), &mut buf, &mut got, true).expect("the next is whole"), 10);
}

#[test]
fn what_cannot_be_distinguished_is_rejected() {
    let (a, b) = socket::pair().expect("pair");
    assert_eq!(socket::send(a.as_fd(), &[], &[]).expect_err("empty").kind(), ErrorKind::InvalidInput);
    let many = vec![b.as_fd(); socket::MAX_FDS + 1];
    assert_eq!(socket::send(a.as_fd(), &[1], &many).expect_err("too many").kind(), ErrorKind::InvalidInput);
}

#[test]
fn the_peers_end_is_seen_on_both_ways() {
    let (a, b) = socket::pair().expect("pair");
    drop(b);
    assert_eq!(socket::receive(a.as_fd(), &mut [0; 4], &mut Vec::new(), false).expect("receive"), 0);
    let e = socket::send(a.as_fd(), &[1], &[]).expect_err("gone");
    assert_eq!(e.kind(), ErrorKind::BrokenPipe, "and no SIGPIPE");
}
