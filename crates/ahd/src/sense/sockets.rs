//! Which descriptors of a process have input waiting, and the state of its TCP sockets: by copies
//! of its descriptors, closed at once.

use super::process::Process;
use crate::facts::{Connection, Record, Unsure};
use orbit_linux::{pidfd, poll, procfs, socket_info};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Descriptors of a process that are read, at most.
const MOST: usize = 512;

/// Reads one process. Where its descriptors may not be copied nothing is handed over.
pub(super) fn read(process: &mut Process, t: f64, out: &mut dyn FnMut(Record)) {
    let pid = process.pid;
    let Some(handle) = process.handle.as_ref() else { return };
    let (mut ready, mut connections, mut unsure) = (Vec::new(), Vec::new(), Vec::new());
    let mut copies = 0;
    for (fd, link) in procfs::descriptors(pid) {
        if link == "anon_inode:[io_uring]" {
            unsure.push(Unsure::IoUring);
        }
        let is_socket = link.starts_with("socket:");
        // The tick of a timer is no input: it comes while nobody asks for anything.
        let can_wait = is_socket || link.starts_with("pipe:") || link == "anon_inode:[eventfd]";
        if !can_wait || copies == MOST {
            continue;
        }
        copies += 1;
        let Ok(copy) = pidfd::duplicate(handle.as_fd(), fd) else { continue };
        let mut polled = [libc::pollfd { fd: copy.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        if poll::poll(&mut polled, Some(Duration::ZERO)).is_ok_and(|n| n > 0) && polled[0].revents & libc::POLLIN != 0 {
            ready.push(fd);
        }
        if is_socket && let Some(s) = socket_info::tcp(copy.as_fd()) {
            connections.push(connection(fd, &s));
        }
    }
    unsure.dedup();
    process.unsure = unsure;
    if !connections.is_empty() {
        out(Record::Connections { t, p: pid, c: connections });
    }
    if process.ready.as_ref() != Some(&ready) {
        out(Record::Ready { t, p: pid, fds: ready.clone() });
        process.ready = Some(ready);
    }
}

fn connection(fd: i32, s: &socket_info::Tcp) -> Connection {
    let unread = i64::from(s.unread);
    let (received, sent) = (s.received_ms, s.sent_ms);
    (fd, s.port, s.peer_port, u8::from(s.listens), received, sent, s.bytes_in, s.bytes_out, unread, s.state)
}
