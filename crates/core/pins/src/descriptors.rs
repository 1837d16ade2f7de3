//! Files, sockets and channels of another process, through duplicates of its own descriptors
//! (pidfd_getfd) and /proc. Nothing here changes a flag of the process' descriptors; only `seek`
//! moves an offset, and only writes write.

use orbit_linux::{maps, pidfd, procfs, stream};
use orbit_rmk::{Channel, OpenFile, PinError, Reply, Socket};
use std::{
    collections::HashMap,
    fs,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
};

/// Most bytes that one command reads.
pub(super) const MAX_READ_BYTES: u64 = 64 << 20;

/// A descriptor of our own for the open file behind descriptor `fd` of a process.
fn duplicate(pid: u32, fd: u32) -> Result<OwnedFd, PinError> {
    let what = || format!("descriptor {fd} of process {pid}");
    let process = pidfd::open(pid as i32).map_err(|error| PinError::of(what(), error))?;
    pidfd::duplicate(process.as_fd(), fd as i32)
        .map_err(|error| PinError::of(format!("{} (needs the right to trace the process)", what()), error))
}

/// Descriptors of a process and what they lead to, in order.
pub(crate) fn links(pid: u32) -> Result<Vec<(u32, String)>, PinError> {
    let dir = fs::read_dir(format!("/proc/{pid}/fd"))
        .map_err(|error| PinError::of(format!("descriptors of process {pid}"), error))?;
    let mut all: Vec<(u32, String)> = dir
        .flatten()
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse().ok()?,
                fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned(),
            ))
        })
        .collect();
    all.sort_unstable();
    Ok(all)
}

/// A field of /proc/PID/fdinfo/FD.
fn info(pid: u32, fd: u32, field: &str) -> Option<String> {
    let text = procfs::text(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(|value| value.trim().to_string()))
}

fn flags(pid: u32, fd: u32) -> u32 {
    info(pid, fd, "flags").and_then(|text| u32::from_str_radix(&text, 8).ok()).unwrap_or(0)
}

/// `kind:[number]`, as /proc names what has no path.
pub(crate) fn identity(link: &str, kind: &str) -> Option<u64> {
    link.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}

pub(super) fn files(pid: u32) -> Result<Vec<OpenFile>, PinError> {
    let open = |(fd, path): (u32, String)| OpenFile {
        fd,
        path,
        offset: info(pid, fd, "pos").and_then(|pos| pos.parse().ok()).unwrap_or(0),
        flags: flags(pid, fd),
    };
    Ok(links(pid)?.into_iter().filter(|(_, path)| path.starts_with('/')).map(open).collect())
}

fn file(pid: u32, fd: u32) -> Result<fs::File, PinError> {
    duplicate(pid, fd).map(fs::File::from)
}

pub(super) fn read(pid: u32, fd: u32, offset: u64, length: u64) -> Result<Reply, PinError> {
    if length > MAX_READ_BYTES {
        return Err(PinError::Refused(format!(
            "{length} bytes in one command, {MAX_READ_BYTES} at most: read in parts"
        )));
    }
    let file = file(pid, fd)?;
    let mut bytes = vec![0; length as usize];
    let mut have = 0;
    while have < bytes.len() {
        match file.read_at(&mut bytes[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(error) => {
                return Err(PinError::of(format!("reading descriptor {fd} of process {pid} at {offset}"), error));
            }
        }
    }
    bytes.truncate(have);
    Ok(Reply::Bytes { bytes })
}

pub(super) fn write(pid: u32, fd: u32, offset: u64, bytes: &[u8]) -> Result<Reply, PinError> {
    let written = file(pid, fd)?.write_all_at(bytes, offset);
    written.map_err(|error| PinError::of(format!("writing descriptor {fd} of process {pid} at {offset}"), error))?;
    Ok(Reply::Id { id: bytes.len() as u64 })
}

pub(super) fn seek(pid: u32, fd: u32, offset: u64) -> Result<Reply, PinError> {
    let copy = duplicate(pid, fd)?;
    // The duplicate shares its offset with the process' descriptor, which is the point.
    stream::seek(copy.as_fd(), offset).map(|id| Reply::Id { id }).map_err(|error| {
        PinError::of(format!("setting the offset of descriptor {fd} of process {pid} to {offset}"), error)
    })
}

/// A line of /proc/PID/net/tcp and its like.
pub(crate) struct Line {
    pub local: String,
    pub peer: String,
    pub unread: u64,
    unsent: u64,
    listening: bool,
}

fn address(text: &str) -> Option<String> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Option<Vec<u32>> = (0..host.len() / 8)
        .map(|n| u32::from_str_radix(host.get(n * 8..n * 8 + 8)?, 16).ok().map(u32::from_be))
        .collect();
    match words?[..] {
        [a] => Some(format!("{}:{port}", Ipv4Addr::from(a))),
        [a, b, c, d] => {
            let all = u128::from(a) << 96 | u128::from(b) << 64 | u128::from(c) << 32 | u128::from(d);
            Some(format!("[{}]:{port}", Ipv6Addr::from(all)))
        }
        _ => None,
    }
}

fn inet(pid: u32, family: &str, into: &mut HashMap<u64, (String, Line)>) {
    let text = procfs::text(format!("/proc/{pid}/net/{family}")).unwrap_or_default();
    for line in text.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, peer, state, queues, _, _, _, _, inode, ..] = words[..] else { continue };
        let (Some(local), Some(peer), Ok(inode)) = (address(local), address(peer), inode.parse()) else { continue };
        let (unsent, unread) = queues.split_once(':').unwrap_or(("0", "0"));
        let hex = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let peer = if peer.ends_with(":0") { String::new() } else { peer };
        let listening = state == "0A" && family.starts_with("tcp");
        into.insert(inode, (family.into(), Line { local, peer, unread: hex(unread), unsent: hex(unsent), listening }));
    }
}

/// The TCP sockets of a process' network namespace, by inode.
pub(crate) fn tcp_lines(pid: u32) -> Vec<(u64, Line)> {
    let mut table = HashMap::new();
    for family in ["tcp", "tcp6"] {
        inet(pid, family, &mut table);
    }
    table.into_iter().map(|(inode, (_, line))| (inode, line)).collect()
}

/// An address as [`Line`] has it; `None` for that of no peer.
pub(crate) fn address_of(text: &str) -> Option<SocketAddr> {
    text.parse().ok()
}

fn unix(pid: u32, into: &mut HashMap<u64, (String, Line)>) {
    let text = procfs::text(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    for line in text.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, flags, _, _, inode, ref path @ ..] = words[..] else { continue };
        let Ok(inode) = inode.parse() else { continue };
        let listening = flags == "00010000";
        let line = Line { local: path.join(" "), peer: String::new(), unread: 0, unsent: 0, listening };
        into.insert(inode, ("unix".into(), line));
    }
}

fn socket_table(pid: u32) -> HashMap<u64, (String, Line)> {
    let mut table = HashMap::new();
    for family in ["tcp", "tcp6", "udp", "udp6"] {
        inet(pid, family, &mut table);
    }
    unix(pid, &mut table);
    table
}

pub(super) fn sockets(pid: u32) -> Result<Vec<Socket>, PinError> {
    let links = links(pid)?;
    let mut table = socket_table(pid);
    let one = |(fd, link): (u32, String)| {
        let (family, line) = table.remove(&identity(&link, "socket")?).unwrap_or_else(|| {
            ("other".into(), Line { local: String::new(), peer: String::new(), unread: 0, unsent: 0, listening: false })
        });
        let unread = if line.unread == 0 && !line.listening {
            duplicate(pid, fd).ok().and_then(|copy| stream::bytes_waiting(copy.as_fd())).unwrap_or(0)
        } else {
            line.unread
        };
        Some(Socket {
            fd,
            family,
            local: line.local,
            peer: line.peer,
            unread,
            unsent: line.unsent,
            listening: line.listening,
        })
    };
    Ok(links.into_iter().filter_map(one).collect())
}

pub(super) fn channels(pid: u32) -> Result<Vec<Channel>, PinError> {
    let table = socket_table(pid);
    let one = |(fd, link): (u32, String)| {
        let (kind, number) = if let Some(number) = identity(&link, "pipe") {
            ("pipe", number)
        } else if let Some(number) = identity(&link, "socket") {
            (table.get(&number).filter(|(family, _)| family == "unix").map(|_| "unix")?, number)
        } else if link == "anon_inode:[eventfd]" {
            ("eventfd", info(pid, fd, "eventfd-id").and_then(|id| id.parse().ok()).unwrap_or(0))
        } else {
            return None;
        };
        let waiting = match kind {
            "eventfd" => info(pid, fd, "eventfd-count").and_then(|count| u64::from_str_radix(&count, 16).ok()),
            _ => duplicate(pid, fd).ok().and_then(|copy| stream::bytes_waiting(copy.as_fd())),
        };
        let access = flags(pid, fd) & libc::O_ACCMODE as u32;
        Some(Channel {
            fd,
            kind: kind.into(),
            identity: number,
            waiting: waiting.unwrap_or(0),
            writable: access != libc::O_RDONLY as u32,
        })
    };
    let mut all: Vec<Channel> = links(pid)?.into_iter().filter_map(one).collect();
    system_v(pid, &mut all);
    Ok(all)
}

/// System V objects: memory that the process has attached, and queues that it was the last to use.
fn system_v(pid: u32, into: &mut Vec<Channel>) {
    let mut add = |kind: &str, identity: u64, waiting: u64, writable: bool| {
        into.push(Channel { fd: u32::MAX, kind: kind.into(), identity, waiting, writable });
    };
    // The memory's identifier stands where a file has its inode.
    for entry in maps::of(pid as i32).unwrap_or_default().iter().filter(|entry| entry.name.starts_with("/SYSV")) {
        add("sysv-shm", entry.inode, 0, entry.protection & libc::PROT_WRITE != 0);
    }
    for line in fs::read_to_string("/proc/sysvipc/msg").unwrap_or_default().lines().skip(1) {
        let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        if let [_, id, _, bytes, _, last_sender, last_receiver, ..] = words[..]
            && [last_sender, last_receiver].contains(&u64::from(pid))
        {
            add("sysv-msg", id, bytes, true);
        }
    }
}

pub(super) fn channel_write(pid: u32, fd: u32, bytes: &[u8]) -> Result<Reply, PinError> {
    let what = || format!("writing {} bytes to channel {fd} of process {pid}", bytes.len());
    let copy = duplicate(pid, fd)?;
    let written = stream::write_now(copy.as_fd(), bytes).map_err(|error| PinError::of(what(), error))?;
    Ok(Reply::Id { id: written as u64 })
}
