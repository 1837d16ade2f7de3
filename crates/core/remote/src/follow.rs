//! Who a thread waits for on another node: a socket's peer, followed by pins.
//!
//! Promises: nothing is said but what the pins answered. A thread waits for a peer only if it is in
//! a call on one socket (`read`, `recv…`, `write`, `send…`), or in `poll` of descriptors of which
//! one is a connection. What cannot be known is nothing, or a sentence that says so.

use orbit_rmk::{CallNow, Client, Command, Holder, Reply, Socket, ThreadTime};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

/// A node by whose addresses its services are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Addresses of its services.
    pub hosts: Vec<IpAddr>,
}

/// Whom a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The node.
    pub node: String,
    /// The process there; the first, where several have the socket open.
    pub pid: Option<u32>,
    /// Its name.
    pub name: Option<String>,
    /// In words: `redis-server (process 412 on node db1), which is stopped`.
    pub text: String,
}

/// Descriptors of a `poll` that are read; with more nothing is said.
const MAX_POLLED: u64 = 64;
const POLLFD_BYTES: u64 = 8;
/// Processes that are named.
const MAX_NAMED: usize = 3;

/// Whom a thread of this node waits for on one of these nodes. `module` uses pins of the core here,
/// which has those of the nodes too. Waits for answers of the node: a few calls of
/// [`crate::link::CALL_TIME`] at most.
pub fn waits_for(module: &Client, nodes: &[Known], pid: u32, tid: u32) -> Option<Waits> {
    let ask = |pin: &str, command: Command| module.use_pin(pin).and_then(|()| module.issue_cmd(pin, &command));
    let Ok(Reply::Calls { calls }) = ask("P_SYSC", Command::CallsNow { pid }) else { return None };
    let call = calls.into_iter().find(|call| call.tid == tid)?;
    let waited = waited(&call, |address, length| match ask("P_MEM", Command::MemoryRead { pid, address, length }) {
        Ok(Reply::Bytes { bytes }) if bytes.len() as u64 == length => Some(bytes),
        _ => None,
    })?;
    let Ok(Reply::Sockets { sockets }) = ask("P_NET", Command::Sockets { pid }) else { return None };
    let (node, socket) = connection(&sockets, &waited, nodes)?;
    let (local, peer) = (socket.local.clone(), socket.peer.clone());
    let at = format!("{peer} on node {}", node.name);
    let unknown = |why: String| Waits { node: node.name.clone(), pid: None, name: None, text: format!("{at}: {why}") };
    let there = |pin: &str| format!("{pin}@{}", node.name);
    let holders = match ask(&there("P_NET"), Command::SocketHolders { local: peer, peer: local }) {
        Ok(Reply::Holders { holders }) => holders,
        Ok(_) => return None,
        Err(error) => return Some(unknown(format!("who serves it is not known: {error}"))),
    };
    let Some(first) = holders.first() else {
        return Some(unknown("no process there has this connection (or its address was translated on the way)".into()));
    };
    let state = match ask(&there("P_SCHL"), Command::ThreadTimes { pid: first.pid }) {
        Ok(Reply::Threads { threads }) => state(&threads),
        _ => None,
    };
    let text = sentence(&node.name, &holders, state);
    Some(Waits { node: node.name.clone(), pid: Some(first.pid), name: Some(first.name.clone()), text })
}

/// The descriptors that a call waits for; `read` gives bytes of the process.
fn waited(call: &CallNow, read: impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<Vec<u32>> {
    let argument = |nth: usize| call.arguments.get(nth).copied();
    match call.number {
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg => Some(vec![u32::try_from(argument(0)?).ok()?]),
        libc::SYS_poll | libc::SYS_ppoll => {
            let (address, count) = (argument(0)?, argument(1)?);
            if count == 0 || count > MAX_POLLED {
                return None;
            }
            let bytes = read(address, count * POLLFD_BYTES)?;
            let all = bytes.as_chunks::<{ POLLFD_BYTES as usize }>().0.iter();
            // A negative number is a place left out.
            Some(
                all.filter_map(|one| u32::try_from(i32::from_ne_bytes([one[0], one[1], one[2], one[3]])).ok())
                    .collect(),
            )
        }
        _ => None,
    }
}

/// The one connection among these descriptors, if it leads to one of the nodes.
fn connection<'a>(sockets: &'a [Socket], waited: &[u32], nodes: &'a [Known]) -> Option<(&'a Known, &'a Socket)> {
    let is_waited = |socket: &&Socket| waited.contains(&socket.fd) && socket.family.starts_with("tcp");
    let mut all = sockets.iter().filter(is_waited).filter(|socket| !socket.listening && !socket.peer.is_empty());
    let (socket, None) = (all.next()?, all.next()) else { return None };
    let host = socket.peer.parse::<SocketAddr>().ok()?.ip().to_canonical();
    let node = nodes.iter().find(|node| node.hosts.iter().any(|of| of.to_canonical() == host))?;
    Some((node, socket))
}

/// What all threads of a process do, if they do the same.
fn state(threads: &[ThreadTime]) -> Option<&'static str> {
    let all = |states: &[u8]| !threads.is_empty() && threads.iter().all(|thread| states.contains(&thread.state));
    if all(b"Tt") {
        Some("is stopped")
    } else if all(b"ZX") {
        Some("has ended")
    } else if all(b"S") {
        Some("sleeps in all threads")
    } else if threads.iter().any(|thread| thread.state == b'R') {
        Some("computes")
    } else {
        None
    }
}

fn sentence(node: &str, holders: &[Holder], state: Option<&str>) -> String {
    let named: Vec<String> = holders
        .iter()
        .take(MAX_NAMED)
        .map(|holder| format!("{} (process {} on node {node})", holder.name, holder.pid))
        .collect();
    let mut text = named.join(", ");
    if holders.len() > MAX_NAMED {
        // Writing to a text cannot fail.
        let _ = write!(text, " and {} more", holders.len() - MAX_NAMED);
    }
    let unread = holders.first().map_or(0, |holder| holder.unread);
    let mut does: Vec<String> = state.map(str::to_owned).into_iter().collect();
    if unread > 0 {
        does.push(format!("has not read {unread} bytes of it"));
    }
    if !does.is_empty() {
        let which = if holders.len() == 1 { "which" } else { "the first of which" };
        let _ = write!(text, ", {which} {}", does.join(" and "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: i64, arguments: &[u64]) -> CallNow {
        CallNow { tid: 1, number, arguments: arguments.to_vec() }
    }

    fn socket(fd: u32, family: &str, peer: &str) -> Socket {
        let family = family.to_owned();
        Socket { fd, family, local: "10.0.0.1:9".into(), peer: peer.into(), unread: 0, unsent: 0, listening: false }
    }

    #[test]
    fn descriptors_of_the_calls_that_wait_for_one() {
        let none = |_: u64, _: u64| None;
        assert_eq!(waited(&call(libc::SYS_recvfrom, &[5]), none), Some(vec![5]));
        assert_eq!(waited(&call(libc::SYS_futex, &[5]), none), None);
        assert_eq!(waited(&call(-2, &[]), none), None);
        let polled = |address: u64, length: u64| {
            assert_eq!((address, length), (4096, 16));
            Some([7i32, 1, -1, 1].into_iter().flat_map(i32::to_ne_bytes).collect())
        };
        assert_eq!(waited(&call(libc::SYS_poll, &[4096, 2]), polled), Some(vec![7]));
        for count in [0, MAX_POLLED + 1, u64::MAX] {
            assert_eq!(waited(&call(libc::SYS_ppoll, &[4096, count]), none), None);
        }
    }

    #[test]
    fn only_one_connection_to_a_known_node_is_followed() {
        let nodes = [Known { name: "db1".into(), hosts: vec![[10, 0, 0, 2].into()] }];
        let found =
            |sockets: &[Socket], waited: &[u32]| connection(sockets, waited, &nodes).map(|(_, socket)| socket.fd);
        let (own, mapped) = (socket(5, "tcp", "10.0.0.2:6379"), socket(6, "tcp6", "[::ffff:10.0.0.2]:6379"));
        let other = socket(7, "tcp", "10.0.0.3:6379");
        assert_eq!(found(&[own.clone(), other.clone()], &[5]), Some(5));
        assert_eq!(found(std::slice::from_ref(&mapped), &[6]), Some(6));
        assert_eq!(found(&[other], &[7]), None, "no node that is known");
        assert_eq!(found(&[own, mapped], &[5, 6]), None, "which of both is not known");
        assert_eq!(found(&[socket(5, "udp", "10.0.0.2:53"), socket(8, "unix", "")], &[5, 8]), None);
    }

    #[test]
    fn what_is_said_of_the_holders() {
        let holder = |pid: u32, unread: u64| Holder { pid, name: "redis-server".into(), fd: 8, unread };
        let one = sentence("db1", &[holder(412, 14)], Some("is stopped"));
        assert_eq!(one, "redis-server (process 412 on node db1), which is stopped and has not read 14 bytes of it");
        assert_eq!(sentence("db1", &[holder(1, 0)], None), "redis-server (process 1 on node db1)");
        let many: Vec<Holder> = (1..=5).map(|pid| holder(pid, 0)).collect();
        let text = sentence("db1", &many, Some("computes"));
        assert!(text.ends_with("(process 3 on node db1) and 2 more, the first of which computes"), "{text}");
    }

    #[test]
    fn a_state_holds_for_all_threads_or_is_not_said() {
        let threads = |states: &[u8]| -> Vec<ThreadTime> {
            let of = |state: &u8| ThreadTime { tid: 1, state: *state, ran_ns: 0, waited_ns: 0, slices: 0 };
            states.iter().map(of).collect()
        };
        assert_eq!(state(&threads(b"TT")), Some("is stopped"));
        assert_eq!(state(&threads(b"SR")), Some("computes"));
        assert_eq!(state(&threads(b"SD")), None);
        assert_eq!(state(&threads(b"TS")), None);
        assert_eq!(state(&[]), None);
    }
}
