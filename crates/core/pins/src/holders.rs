//! Which processes have the socket of a connection open: what a peer on another machine asks who
//! has seen one end only.

use crate::descriptors::{Line, address_of, identity, links, tcp_lines};
use orbit_linux::procfs;
use orbit_rmk::{Holder, PinError};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Holders that are listed: a prefork server's children have one listener, rarely one connection.
const MAX_HOLDERS: usize = 64;

/// The processes with the socket of the TCP connection from `local` to `peer`, in all network
/// namespaces of which a process can be read.
///
/// An address of version 4 and the same one mapped to version 6 are equal. Nothing is found where
/// an address was translated on the way. Reads the tables of each namespace and the descriptors of
/// all processes: some milliseconds with hundreds of them.
pub(crate) fn holders(local: &str, peer: &str) -> Result<Vec<Holder>, PinError> {
    let address = |text: &str| -> Result<SocketAddr, PinError> {
        let read = text.parse().map_err(|_| PinError::Refused(format!("{text:?} is no address with a port")))?;
        Ok(canonical(read))
    };
    let ends = (address(local)?, address(peer)?);
    let pids: Vec<u32> = procfs::ids("/proc").into_iter().filter_map(|pid| pid.try_into().ok()).collect();
    let Some((inode, unread)) = connection(&pids, ends) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for pid in pids {
        // One that has ended, or may not be read.
        let Ok(links) = links(pid) else { continue };
        let of = links.iter().find(|(_, link)| identity(link, "socket") == Some(inode));
        if let Some((fd, _)) = of {
            let name = procfs::text(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.push(Holder { pid, name: name.trim_end().to_owned(), fd: *fd, unread });
        }
        if found.len() == MAX_HOLDERS {
            break;
        }
    }
    Ok(found)
}

/// Inode of the connection's socket, and bytes that wait in it.
fn connection(pids: &[u32], ends: (SocketAddr, SocketAddr)) -> Option<(u64, u64)> {
    let mut seen = BTreeSet::new();
    for pid in pids {
        let Ok(space) = std::fs::read_link(format!("/proc/{pid}/ns/net")) else { continue };
        if !seen.insert(space) {
            continue;
        }
        let is_it = |line: &Line| address_of(&line.local).zip(address_of(&line.peer)).map(both) == Some(ends);
        if let Some((inode, line)) = tcp_lines(*pid).into_iter().find(|(_, line)| is_it(line)) {
            return Some((inode, line.unread));
        }
    }
    None
}

fn both((a, b): (SocketAddr, SocketAddr)) -> (SocketAddr, SocketAddr) {
    (canonical(a), canonical(b))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::holders;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn each_end_of_a_connection_is_found_by_the_addresses_the_other_sees() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(at).expect("loopback");
            let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
            let (server, _) = listener.accept().expect("accepted");
            client.write_all(b"four").expect("sent");
            let (local, peer) = (client.peer_addr().expect("connected"), client.local_addr().expect("bound"));
            let found = holders(&local.to_string(), &peer.to_string()).expect("read");
            let own = found.iter().find(|holder| holder.pid == std::process::id()).expect("this process");
            assert_eq!(own.fd, std::os::fd::AsRawFd::as_raw_fd(&server) as u32, "the server's end: {found:?}");
            assert_eq!(own.unread, 4);
            drop(server);
        }
        assert!(holders("127.0.0.1:1", "127.0.0.1:2").expect("read").is_empty());
        assert!(holders("nowhere", "127.0.0.1:2").is_err());
    }
}
