//! What the other side of a connection does, on which a thread has waited for an answer for
//! [`ASK_AFTER`]: whether it can be shown to be stopped, to work, or to have gone back for events.
//!
//! Asked only about connections that the process opened itself, a few at a time. What is not on
//! this machine, or may not be read, is [`Back::Unknown`].

use crate::facts::Back;
use crate::history::{reads, takes_events};
use orbit_linux::status::Status;
use orbit_linux::thread::{self, Call};
use orbit_linux::{procfs, socket_info};
use std::collections::BTreeMap;

/// Sleep in a read before the other side is asked about, s; asked again as often.
pub(super) const ASK_AFTER: f64 = 2.0;
/// Connections asked about in one scan, of all processes.
pub(super) const MAX_CONNECTIONS_PER_SCAN: usize = 4;
/// Threads of the other side that are read.
const THREADS: usize = 256;
/// Descriptors of a `poll` that are read.
const POLLED: u64 = 256;
/// The last characters of an address: an IPv4 one with its port.
const ADDRESS: usize = 13;

/// What the other side of a connection is, and does.
pub(super) fn read(pid: i32, fd: i32) -> (Back, Vec<i32>) {
    let unknown = (Back::Unknown, Vec::new());
    let link = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap_or_default();
    let inode = |link: &str| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok();
    let Some(own) = link.to_str().and_then(inode) else { return unknown };
    let mut lines = Vec::new();
    for file in ["tcp", "tcp6"] {
        lines.extend(socket_info::table(&procfs::text(format!("/proc/{pid}/net/{file}")).unwrap_or_default()));
    }
    let tail = |address: &str| address.get(address.len().saturating_sub(ADDRESS)..).unwrap_or("").to_owned();
    let Some(line) = lines.iter().find(|line| line.3 == own) else { return unknown };
    let (local, remote) = (tail(&line.0), tail(&line.1));
    let Some(peer) = lines.iter().find(|l| l.3 != 0 && (tail(&l.0), tail(&l.1)) == (remote.clone(), local.clone()))
    else {
        return unknown;
    };
    let wanted = format!("socket:[{}]", peer.3);
    let mut holders: BTreeMap<i32, i32> = BTreeMap::new();
    for other in procfs::ids("/proc") {
        let found = procfs::descriptors(other).into_iter().find(|(_, link)| *link == wanted);
        holders.extend(found.map(|(fd, _)| (other, fd)));
    }
    let states: Vec<Back> = holders.iter().map(|(other, fd)| state(*other, *fd)).collect();
    let back = states.into_iter().min().unwrap_or(Back::Unknown);
    (back, holders.into_keys().collect())
}

/// What a process does that has the other end of a connection under this descriptor.
fn state(pid: i32, fd: i32) -> Back {
    let tids: Vec<i32> = procfs::ids(format!("/proc/{pid}/task")).into_iter().take(THREADS).collect();
    let mut stopped = 0;
    let mut back = Back::Waits;
    for tid in &tids {
        let state = Status::of_thread(pid, *tid).unwrap_or_default().state();
        match state {
            Some('T' | 't') => stopped += 1,
            Some('R' | 'D') => return Back::Works,
            _ => {}
        }
        let line = procfs::record(format!("/proc/{pid}/task/{tid}/syscall"));
        match line.ok().and_then(|line| thread::call(&line)) {
            Some(call) if awaits(pid, *tid, &call, fd) => back = Back::Serves,
            Some(call) if matches!(call.nr, libc::SYS_nanosleep | libc::SYS_clock_nanosleep) => {
                back = back.min(Back::Naps)
            }
            Some(_) => {}
            None if state == Some('S') => return Back::Unknown,
            None => {}
        }
    }
    if stopped > 0 && stopped == tids.len() { Back::Stopped } else { back }
}

/// Whether the call waits for events of the descriptor among others: it has gone back for more.
fn awaits(pid: i32, tid: i32, call: &Call, fd: i32) -> bool {
    match call.nr {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
            let text = procfs::text(format!("/proc/{pid}/task/{tid}/fdinfo/{}", call.args[0] as i32));
            thread::epoll_set(&text.unwrap_or_default()).iter().any(|(watched, _)| *watched == fd)
        }
        libc::SYS_poll | libc::SYS_ppoll => {
            let list = orbit_inspect::Memory::of(pid).vec(call.args[0], 8 * call.args[1].min(POLLED) as usize);
            list.chunks_exact(8).any(|one| i32::from_le_bytes([one[0], one[1], one[2], one[3]]) == fd)
        }
        libc::SYS_select | libc::SYS_pselect6 => call.args[0] > fd as u64,
        _ => false,
    }
}

/// The descriptor that a thread waits for an answer at, by its call: a read, or a `poll` of one.
pub(super) fn awaited(sight: &crate::facts::Sight) -> Option<i32> {
    (reads(sight) && !takes_events(sight)).then_some(sight.a0 as i32)
}
