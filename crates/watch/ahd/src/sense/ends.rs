//! The holders of the pipes and sockets of the watched processes, and their other sides.
//!
//! All processes that can be seen are read, but only what leads to a watched one is handed over.
//! They are read one after the other: a descriptor that is sent from one not read yet to one
//! already read is missed. That takes a unix socket, and both its sides run.

use super::process::Process;
use crate::facts::Record;
use orbit_inspect::Family;
use orbit_linux::{procfs, socket_info, thread};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Reads it all. `true` with it if a process that may pass descriptors on ran meanwhile, so that
/// one may be missing.
pub(super) fn read(watched: &mut BTreeMap<i32, Process>, t: f64) -> (Record, bool) {
    let mut all: Vec<(i32, i32, String)> = Vec::new();
    let mut unreadable = Vec::new();
    for pid in procfs::ids("/proc") {
        let list = procfs::descriptors_of(pid);
        match list {
            Ok(list) => {
                let own = watched.contains_key(&pid);
                let wanted = |link: &str| {
                    link.starts_with("pipe:")
                        || link.starts_with("socket:")
                        || own && link.starts_with("anon_inode:[eventfd")
                };
                all.extend(list.into_iter().filter(|(_, link)| wanted(link)).map(|(fd, link)| (pid, fd, link)));
            }
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => unreadable.push(pid),
            Err(_) => {}
        }
    }
    let own: HashSet<String> = all.iter().filter(|(pid, ..)| watched.contains_key(pid)).map(|f| f.2.clone()).collect();
    let inodes: HashSet<u64> = own.iter().filter_map(|link| inode(link)).collect();
    let (tcp, unix) = sockets(watched, &inodes);
    let others = tcp.iter().map(|line| line.3).chain(unix.iter().map(|pair| pair.1));
    let others: HashSet<String> = others.map(|inode| format!("socket:[{inode}]")).collect();
    let flying = all.iter().any(|(pid, fd, link)| {
        (own.contains(link) || watched.contains_key(pid)) && link.starts_with("socket:") && {
            let info = procfs::text(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
            thread::descriptors_on_their_way(&info) > 0
        }
    });
    let family = Family::of(watched.keys().copied().chain(unreadable.iter().copied()));
    unreadable.retain(|pid| watched.keys().any(|own| family.related(*pid, *own)));
    let passes_on = |link: &str| inode(link).is_some_and(|inode| unix.iter().any(|(own, _)| *own == inode));
    let may_pass: BTreeSet<i32> = all.iter().filter(|(.., link)| passes_on(link)).map(|(pid, ..)| *pid).collect();
    let ran = may_pass.iter().any(|pid| watched.get_mut(pid).is_some_and(Process::has_run_since_scan));
    let wanted = all.into_iter().filter(|(_, _, link)| own.contains(link) || others.contains(link));
    let f = wanted.map(|(pid, fd, link)| {
        let mode = if link.starts_with("pipe:") { mode(pid, fd) } else { 2 };
        (pid, fd, link, mode)
    });
    (Record::Ends { t, f: f.collect(), tcp, unix, flying, hidden: unreadable }, ran)
}

/// Whether two readings say the same.
pub(super) fn same(a: &Record, b: &Record) -> bool {
    match (a, b) {
        (
            Record::Ends { f, tcp, unix, flying, hidden, .. },
            Record::Ends { f: f2, tcp: tcp2, unix: unix2, flying: flying2, hidden: hidden2, .. },
        ) => (f, tcp, unix, flying, hidden) == (f2, tcp2, unix2, flying2, hidden2),
        _ => false,
    }
}

fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// How a descriptor is open.
fn mode(pid: i32, fd: i32) -> u8 {
    thread::access(&procfs::text(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default())
}

/// The sockets of this machine that have to do with these inodes: TCP lines, and pairs of connected
/// unix sockets.
fn sockets(watched: &BTreeMap<i32, Process>, inodes: &HashSet<u64>) -> (Vec<socket_info::Line>, Vec<(u64, u64)>) {
    if inodes.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let mut lines: Vec<socket_info::Line> = Vec::new();
    let mut spaces = BTreeSet::new();
    for pid in watched.keys() {
        let space = std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
        if spaces.insert(space) {
            for file in ["tcp", "tcp6"] {
                let text = procfs::text(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
                lines.extend(socket_info::table(&text));
            }
        }
    }
    let tail = |address: &str| address.get(address.len().saturating_sub(13)..).unwrap_or("").to_owned();
    let port = |address: &str| address.rsplit(':').next().unwrap_or("").to_owned();
    let own: Vec<&socket_info::Line> = lines.iter().filter(|l| inodes.contains(&l.3)).collect();
    let ways: HashSet<(String, String)> = own.iter().map(|l| (tail(&l.1), tail(&l.0))).collect();
    let ports: HashSet<String> = own.iter().map(|l| port(&l.1)).collect();
    const LISTEN: u32 = 10;
    let wanted = |l: &&socket_info::Line| {
        inodes.contains(&l.3)
            || ways.contains(&(tail(&l.0), tail(&l.1)))
            || l.2 == LISTEN && ports.contains(&port(&l.0))
    };
    let tcp: Vec<socket_info::Line> = lines.iter().filter(wanted).cloned().collect();
    let peers: HashMap<u64, u64> = socket_info::unix_peers().unwrap_or_default();
    let mut unix: Vec<(u64, u64)> = peers.into_iter().filter(|(a, _)| inodes.contains(a)).collect();
    unix.sort_unstable();
    (tcp, unix)
}
