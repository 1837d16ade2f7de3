//! The other side of a socket, where it is on this machine.
//!
//! Owns: the tables in `/proc/TID/net` and one netlink question for unix sockets. Refuses: peers in another network
//! namespace than the socket's own; for unix sockets also sockets outside this process' network namespace.

use super::Wait;
use super::peers::holders;
use crate::procfs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes read of one socket table.
const TABLE: u64 = 64 << 20;

/// The wait of a thread for a socket, with what can be found out of its other side.
pub(super) fn wait(tid: i32, fd: i32, ino: u64, call: &'static str) -> Wait {
    let (local, remote, peers) = inet(tid, ino).or_else(|| unix(tid, ino)).unwrap_or_default();
    Wait::Socket { fd, ino, call, local, remote, peers }
}

type Found = (Option<String>, Option<String>, Vec<i32>);

struct Line {
    proto: &'static str,
    local: SocketAddr,
    remote: SocketAddr,
    ino: u64,
}

fn inet(tid: i32, ino: u64) -> Option<Found> {
    let mut all = Vec::new();
    for (file, proto) in [("tcp", "tcp"), ("tcp6", "tcp"), ("udp", "udp"), ("udp6", "udp")] {
        let text = procfs::text(&format!("/proc/{tid}/net/{file}"), TABLE).unwrap_or_default();
        all.extend(text.lines().skip(1).filter_map(|l| line(l, proto)));
    }
    let own = all.iter().find(|l| l.ino == ino)?;
    let connected = own.remote.port() != 0;
    let mut peers: Vec<i32> = all
        .iter()
        .filter(|l| connected && l.proto == own.proto && l.local == own.remote && l.remote == own.local && l.ino != 0)
        .flat_map(|l| holders(&format!("socket:[{}]", l.ino), None))
        .collect();
    peers.sort_unstable();
    peers.dedup();
    let say = |a: SocketAddr| format!("{} {a}", own.proto);
    Some((Some(say(own.local)), connected.then(|| say(own.remote)), peers))
}

/// A line such as `0: 0100007F:1F90 00000000:0000 0A ... inode`.
fn line(l: &str, proto: &'static str) -> Option<Line> {
    let f: Vec<&str> = l.split_whitespace().collect();
    Some(Line { proto, local: address(f.get(1)?)?, remote: address(f.get(2)?)?, ino: f.get(9)?.parse().ok()? })
}

/// An address as the kernel prints it: 32-bit words in the machine's order.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let word = |i: usize| u32::from_str_radix(host.get(i * 8..i * 8 + 8)?, 16).ok().map(u32::to_le_bytes);
    let ip = match host.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut b = [0u8; 16];
            for i in 0..4 {
                b[i * 4..i * 4 + 4].copy_from_slice(&word(i)?);
            }
            IpAddr::V6(Ipv6Addr::from(b)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

fn unix(tid: i32, ino: u64) -> Option<Found> {
    let text = procfs::text(&format!("/proc/{tid}/net/unix"), TABLE).ok()?;
    let path_of = |ino: u64| {
        text.lines().skip(1).find_map(|l| {
            let f: Vec<&str> = l.split_whitespace().collect();
            (f.get(6)?.parse() == Ok(ino)).then(|| f.get(7).map(|p| format!("unix {p}")))
        })
    };
    let local = path_of(ino)?;
    let peer = unix_peer(u32::try_from(ino).ok()?).map(u64::from);
    let remote = peer.and_then(path_of).flatten();
    let peers = peer.map_or_else(Vec::new, |p| holders(&format!("socket:[{p}]"), None));
    Some((local, remote, peers))
}

/// Asks the kernel for the inode of a unix socket's other side.
fn unix_peer(ino: u32) -> Option<u32> {
    const NETLINK_SOCK_DIAG: i32 = 4;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const SHOW_PEER: u32 = 4;
    const ATTR_PEER: u16 = 2;
    // SAFETY: plain call; the result is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_SOCK_DIAG) };
    if fd < 0 {
        return None;
    }
    // SAFETY: `fd` was just opened and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut ask = Vec::new();
    ask.extend(40u32.to_le_bytes()); // length of header and question
    ask.extend(SOCK_DIAG_BY_FAMILY.to_le_bytes());
    ask.extend((libc::NLM_F_REQUEST as u16).to_le_bytes());
    ask.extend([0; 8]); // sequence number, port
    ask.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    ask.extend(u32::MAX.to_le_bytes()); // any state
    ask.extend(ino.to_le_bytes());
    ask.extend(SHOW_PEER.to_le_bytes());
    ask.extend([0xff; 8]); // no cookie
    // SAFETY: the buffer is valid for its length; a netlink socket without an address sends to the kernel.
    let sent = unsafe { libc::send(fd.as_raw_fd(), ask.as_ptr().cast(), ask.len(), 0) };
    let mut reply = [0u8; 4096];
    // SAFETY: the buffer is valid for its length; the kernel has answered by the time `send` returns.
    let got = unsafe { libc::recv(fd.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), libc::MSG_DONTWAIT) };
    if sent < 0 || got < 32 {
        return None;
    }
    let reply = &reply[..got as usize];
    let u16_at = |i: usize| Some(u16::from_le_bytes(reply.get(i..i + 2)?.try_into().ok()?));
    if u16_at(4)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut at = 32; // behind the header and the fixed part
    while let (Some(len), Some(kind)) = (u16_at(at), u16_at(at + 2)) {
        if kind == ATTR_PEER {
            return Some(u32::from_le_bytes(reply.get(at + 4..at + 8)?.try_into().ok()?)).filter(|&p| p != 0);
        }
        at += (usize::from(len).max(4) + 3) & !3;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn addresses_as_the_kernel_prints_them() {
        assert_eq!(address("0100007F:1F90").unwrap().to_string(), "127.0.0.1:8080");
        assert_eq!(address("0000000000000000FFFF00000100007F:0050").unwrap().to_string(), "127.0.0.1:80");
        assert!(address("xyz:1").is_none());
        assert!(address("0100007é:0050").is_none());
    }
}
