//! The other side of a socket, where it is on this machine.
//!
//! Owns: the tables in `/proc/TID/net` and one netlink question for unix sockets. Refuses: peers in
//! another network namespace than the socket's own; for unix sockets also sockets outside this
//! process' network namespace.

use super::Wait;
use super::peers::Ends;
use crate::procfs;
use orbit_linux::socket_info;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

/// Bytes read of one socket table.
const TABLE: u64 = 64 << 20;

/// The wait of a thread for a socket, with what can be found out of its other side.
pub(super) fn wait(tid: i32, fd: i32, ino: u64, call: &'static str, ends: &mut Ends) -> Wait {
    let began = Instant::now();
    let (local, remote, others) = ends.sockets(tid).other_side(tid, ino).unwrap_or_default();
    ends.price += began.elapsed();
    let mut peers: Vec<i32> = others.iter().flat_map(|ino| ends.holders(&format!("socket:[{ino}]"), None)).collect();
    peers.sort_unstable();
    peers.dedup();
    Wait::Socket { fd, ino, call, local, remote, peers }
}

/// Its own address, the other side's, and the inodes of the sockets there.
type Found = (Option<String>, Option<String>, Vec<u64>);

/// Protocol, own address and the other side's.
type Ways = (&'static str, SocketAddr, SocketAddr);

/// The sockets of one network namespace, each kind read when it is first asked for.
#[derive(Debug, Default)]
pub(super) struct Table {
    inet: Option<Inet>,
    /// Path by inode, for those that have one.
    unix: Option<HashMap<u64, Option<String>>>,
}

#[derive(Debug, Default)]
struct Inet {
    ways: HashMap<u64, Ways>,
    inodes: HashMap<Ways, Vec<u64>>,
}

impl Ends {
    /// The sockets that a thread's network namespace has.
    fn sockets(&mut self, tid: i32) -> &mut Table {
        let space = std::fs::read_link(format!("/proc/{tid}/ns/net"));
        // One that may not be seen is taken for the thread's alone.
        let space = space.map_or_else(|_| tid.to_string(), |to| to.to_string_lossy().into_owned());
        self.sockets.entry(space).or_default()
    }
}

impl Table {
    fn other_side(&mut self, tid: i32, ino: u64) -> Option<Found> {
        let inet = self.inet.get_or_insert_with(|| Inet::of(tid));
        if let Some(&(proto, local, remote)) = inet.ways.get(&ino) {
            let connected = remote.port() != 0;
            let others = inet.inodes.get(&(proto, remote, local)).filter(|_| connected).cloned().unwrap_or_default();
            let say = |a: SocketAddr| format!("{proto} {a}");
            return Some((Some(say(local)), connected.then(|| say(remote)), others));
        }
        let unix = self.unix.get_or_insert_with(|| unix(tid));
        let local = unix.get(&ino)?.clone();
        let peer = socket_info::unix_peer(u32::try_from(ino).ok()?).ok().flatten();
        let remote = peer.and_then(|p| unix.get(&p)).cloned().flatten();
        Some((local, remote, peer.into_iter().collect()))
    }
}

impl Inet {
    fn of(tid: i32) -> Inet {
        let mut all = Inet::default();
        for (file, proto) in [("tcp", "tcp"), ("tcp6", "tcp"), ("udp", "udp"), ("udp6", "udp")] {
            let text = procfs::text(&format!("/proc/{tid}/net/{file}"), TABLE).unwrap_or_default();
            for (ways, ino) in text.lines().skip(1).filter_map(|l| line(l, proto)) {
                all.ways.entry(ino).or_insert(ways);
                if ino != 0 {
                    all.inodes.entry(ways).or_default().push(ino);
                }
            }
        }
        all
    }
}

/// A line such as `0: 0100007F:1F90 00000000:0000 0A ... inode`.
fn line(l: &str, proto: &'static str) -> Option<(Ways, u64)> {
    let f: Vec<&str> = l.split_whitespace().collect();
    Some(((proto, address(f.get(1)?)?, address(f.get(2)?)?), f.get(9)?.parse().ok()?))
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

fn unix(tid: i32) -> HashMap<u64, Option<String>> {
    let text = procfs::text(&format!("/proc/{tid}/net/unix"), TABLE).unwrap_or_default();
    let line = |l: &str| {
        let mut f = l.split_whitespace().skip(6);
        Some((f.next()?.parse().ok()?, f.next().map(|p| format!("unix {p}"))))
    };
    text.lines().skip(1).filter_map(line).collect()
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
