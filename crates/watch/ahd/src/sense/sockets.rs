//! Which descriptors of a process have input waiting, and the state of its TCP sockets: by copies
//! of its descriptors, closed at once.

use super::process::Process;
use crate::facts::{Connection, Record, SocketUse, Unsure};
use crate::history;
use orbit_linux::{pidfd, poll, procfs, socket_info};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Descriptors of a process that are read, at most.
const MAX_DESCRIPTORS: usize = 512;

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
        if !can_wait || copies == MAX_DESCRIPTORS {
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
    find_uses(process, &mut connections);
    let opened = |c: &&Connection| {
        let by_numbers = c.3 == SocketUse::Unclear as u8 && c.1 >= history::FIRST_CHOSEN && c.1 > c.2;
        c.3 == SocketUse::Opened as u8 || by_numbers
    };
    process.asked = connections.iter().filter(opened).map(|c| c.0).collect();
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

/// Finds which connections came in, and which were opened here, by the ports that anybody of this
/// network listens on: read once for each that is new.
fn find_uses(process: &mut Process, connections: &mut [Connection]) {
    let is_connection = |c: &Connection| c.3 == SocketUse::Unclear as u8;
    let is_new = |c: &Connection| is_connection(c) && !process.uses.contains_key(&(c.1, c.2));
    if connections.iter().any(is_new) {
        let mut listened = BTreeSet::new();
        for file in ["tcp", "tcp6"] {
            let text = procfs::text(format!("/proc/{}/net/{file}", process.pid)).unwrap_or_default();
            let lines = socket_info::table(&text).into_iter().filter(|line| line.2 == LISTEN);
            listened.extend(lines.filter_map(|line| u16::from_str_radix(line.0.rsplit(':').next()?, 16).ok()));
        }
        let used = |c: &Connection| match (listened.contains(&c.1), listened.contains(&c.2)) {
            (true, _) => SocketUse::CameIn,
            (false, true) => SocketUse::Opened,
            (false, false) => SocketUse::Unclear,
        };
        let known = std::mem::take(&mut process.uses);
        let of = |c: &Connection| ((c.1, c.2), known.get(&(c.1, c.2)).copied().unwrap_or_else(|| used(c)));
        process.uses = connections.iter().filter(|c| is_connection(c)).map(of).collect();
    }
    for c in connections.iter_mut().filter(|c| is_connection(c)) {
        c.3 = process.uses.get(&(c.1, c.2)).map_or(SocketUse::Unclear, |used| *used) as u8;
    }
}

/// The state of a socket that listens.
const LISTEN: u32 = 10;

fn connection(fd: i32, s: &socket_info::Tcp) -> Connection {
    let unread = i64::from(s.unread);
    let (received, sent) = (s.received_ms, s.sent_ms);
    (fd, s.port, s.peer_port, u8::from(s.listens), received, sent, s.bytes_in, s.bytes_out, unread, s.state)
}
