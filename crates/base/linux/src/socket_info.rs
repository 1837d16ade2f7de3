//! What the kernel says of sockets: a TCP socket's counters, the table of TCP sockets, which unix
//! sockets are connected.
//!
//! Missing: `TCP_INFO` of sockets that are none of TCP (nothing is answered); unix sockets of other
//! network namespaces.

use crate::check;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A TCP socket as seen through a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tcp {
    /// Own port.
    pub port: u16,
    /// The peer's; 0 if there is none.
    pub peer_port: u16,
    /// It takes connections in.
    pub listens: bool,
    /// Time since data came in, ms.
    pub received_ms: u32,
    /// Time since data went out, ms.
    pub sent_ms: u32,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// Bytes that went out and arrived.
    pub bytes_out: u64,
    /// Bytes that were written and have not arrived yet.
    pub unsent: i32,
    /// Bytes that came in and were not read yet.
    pub unread: i32,
    /// State as in `/proc/net/tcp`.
    pub state: u8,
}

/// Byte offsets in the kernel's `struct tcp_info`.
const STATE: usize = 0;
const LAST_DATA_SENT: usize = 44;
const LAST_DATA_RECV: usize = 52;
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;

/// The counters of a TCP socket; nothing if the descriptor is of another kind.
pub fn tcp(fd: BorrowedFd<'_>) -> Option<Tcp> {
    let mut info = [0u8; 256];
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    let port = port_of(fd, false)?;
    let mut listens = [0u8; 4];
    option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, &mut listens)?;
    let listens = i32::from_ne_bytes(listens) != 0;
    let u32_at = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let (mut unread, mut unsent): (i32, i32) = (0, 0);
    if !listens {
        // SAFETY: the kernel writes one int each to a valid place.
        unsafe {
            libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut unread);
            libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut unsent);
        }
    }
    Some(Tcp {
        port,
        peer_port: if listens { 0 } else { port_of(fd, true).unwrap_or(0) },
        listens,
        received_ms: u32_at(LAST_DATA_RECV),
        sent_ms: u32_at(LAST_DATA_SENT),
        bytes_in: u64_at(BYTES_RECEIVED),
        bytes_out: u64_at(BYTES_ACKED),
        unsent,
        unread,
        state: info[STATE],
    })
}

/// Ends a connection by TCP so that its peer does not take it for a regular end.
///
/// # Errors
/// `EINVAL` and others for what is none.
pub fn reset(fd: BorrowedFd<'_>) -> io::Result<()> {
    let none = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: reads the address, which is as long as said.
    crate::check(i64::from(unsafe { libc::connect(fd.as_raw_fd(), &raw const none, size_of_val(&none) as u32) }))?;
    Ok(())
}

/// Whether receiving from a socket or sending to it ends after a time (`SO_RCVTIMEO`,
/// `SO_SNDTIMEO`); not so of what is no socket.
pub fn has_time_limit(fd: BorrowedFd<'_>) -> bool {
    [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].into_iter().any(|name| {
        let mut time = [0u8; size_of::<libc::timeval>()];
        option(fd, libc::SOL_SOCKET, name, &mut time).is_some() && time.iter().any(|byte| *byte != 0)
    })
}

fn option(fd: BorrowedFd<'_>, level: i32, name: i32, into: &mut [u8]) -> Option<()> {
    let mut len = into.len() as libc::socklen_t;
    // SAFETY: the buffer is valid for the length given.
    let r = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, into.as_mut_ptr().cast(), &raw mut len) };
    (r == 0).then_some(())
}

/// The own port of an internet socket, or its peer's.
fn port_of(fd: BorrowedFd<'_>, peer: bool) -> Option<u16> {
    // SAFETY: all-zero bytes are a valid address.
    let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    let at = (&raw mut address).cast();
    // SAFETY: the place is valid for the length given.
    let r = unsafe {
        if peer {
            libc::getpeername(fd.as_raw_fd(), at, &raw mut len)
        } else {
            libc::getsockname(fd.as_raw_fd(), at, &raw mut len)
        }
    };
    let is_inet = matches!(i32::from(address.sin6_family), libc::AF_INET | libc::AF_INET6);
    (r == 0 && is_inet).then(|| u16::from_be(address.sin6_port))
}

/// A line of `/proc/net/tcp`: own and remote address as the kernel writes them, state, inode.
pub type Line = (String, String, u32, u64);

/// Parses `/proc/net/tcp` or `tcp6`.
pub fn table(text: &str) -> Vec<Line> {
    let one = |line: &str| {
        let mut f = line.split_whitespace().skip(1);
        let (local, remote) = (f.next()?.to_owned(), f.next()?.to_owned());
        let state = u32::from_str_radix(f.next()?, 16).ok()?;
        Some((local, remote, state, f.nth(5)?.parse().ok()?))
    };
    text.lines().skip(1).filter_map(one).collect()
}

/// The inode of the other side of each connected unix socket of this network namespace.
///
/// # Errors
/// Those of a netlink socket: `EPERM` or `EAFNOSUPPORT` where a filter forbids it.
pub fn unix_peers() -> io::Result<HashMap<u64, u64>> {
    unix_sockets(None)
}

/// The inode of the other side of one unix socket of this network namespace, by its own inode;
/// `None` if it is not connected.
///
/// # Errors
/// Those of a netlink socket: `EPERM` or `EAFNOSUPPORT` where a filter forbids it.
pub fn unix_peer(inode: u32) -> io::Result<Option<u64>> {
    Ok(unix_sockets(Some(inode))?.get(&u64::from(inode)).copied().filter(|peer| *peer != 0))
}

/// Inode and peer of this unix socket, or of all that have a peer.
fn unix_sockets(one: Option<u32>) -> io::Result<HashMap<u64, u64>> {
    const NETLINK_SOCK_DIAG: i32 = 4;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const SHOW_PEER: u32 = 4;
    const ATTR_PEER: u16 = 2;
    // SAFETY: three integers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_SOCK_DIAG) };
    let fd = check(libc::c_long::from(fd))?;
    // SAFETY: the kernel just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut ask = Vec::with_capacity(40);
    ask.extend(40u32.to_ne_bytes());
    ask.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    let flags = libc::NLM_F_REQUEST | if one.is_some() { 0 } else { libc::NLM_F_DUMP };
    ask.extend((flags as u16).to_ne_bytes());
    ask.extend([0; 8]);
    ask.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    ask.extend(u32::MAX.to_ne_bytes());
    ask.extend(one.unwrap_or(0).to_ne_bytes());
    ask.extend(SHOW_PEER.to_ne_bytes());
    // No cookie.
    ask.extend([0xff; 8]);
    // SAFETY: the buffer is valid for its length; a netlink socket without an address sends to the
    // kernel.
    check(unsafe { libc::send(fd.as_raw_fd(), ask.as_ptr().cast(), ask.len(), 0) } as libc::c_long)?;
    let mut peers = HashMap::new();
    let mut buf = vec![0u8; 64 << 10];
    'answers: loop {
        // The answer to a question about one is there by the time `send` returns.
        let flags = if one.is_some() { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the buffer is valid for its length.
        let got = unsafe { libc::recv(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), flags) };
        let got = check(got as libc::c_long)? as usize;
        let u32_at = |at: usize| Some(u32::from_ne_bytes(buf[..got].get(at..at + 4)?.try_into().ok()?));
        let u16_at = |at: usize| Some(u16::from_ne_bytes(buf[..got].get(at..at + 2)?.try_into().ok()?));
        let mut at = 0;
        while let (Some(len), Some(kind)) = (u32_at(at), u16_at(at + 4)) {
            let len = len as usize;
            if kind != SOCK_DIAG_BY_FAMILY || len < 32 {
                break 'answers;
            }
            // Behind the header: family, type, state, a byte of padding, the inode.
            let inode = u32_at(at + 20);
            let mut attribute = at + 32;
            while attribute + 4 <= at + len {
                let (Some(size), Some(kind)) = (u16_at(attribute), u16_at(attribute + 2)) else { break };
                if kind == ATTR_PEER
                    && let (Some(inode), Some(peer)) = (inode, u32_at(attribute + 4))
                {
                    peers.insert(u64::from(inode), u64::from(peer));
                }
                attribute += (usize::from(size).max(4) + 3) & !3;
            }
            at += (len + 3) & !3;
        }
        if got == 0 || one.is_some() {
            break;
        }
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_connection_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let mut client = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let (server, _) = listener.accept().expect("a connection");
        client.write_all(b"hello").expect("written");
        // Loopback delivers before `write` returns, but for a moment the receiver may be at work.
        let seen = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            tcp(server.as_fd()).filter(|t| t.bytes_in == 5)
        });
        let seen = seen.expect("five bytes");
        assert_eq!((seen.port, seen.unread, seen.state, seen.listens), (port, 5, 1, false));
        assert!(tcp(listener.as_fd()).is_some_and(|t| t.listens && t.port == port));
        assert!(tcp(std::fs::File::open("/dev/null").expect("a file").as_fd()).is_none());
    }

    #[test]
    fn the_other_side_of_a_pair() {
        let (a, b) = crate::socket::pair().expect("a pair");
        let inode =
            |fd: &OwnedFd| std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a file").ino();
        let peers = unix_peers().expect("netlink");
        assert_eq!(peers.get(&inode(&a)), Some(&inode(&b)));
        let small = |fd: &OwnedFd| u32::try_from(inode(fd)).expect("an inode of a socket");
        assert_eq!(unix_peer(small(&b)).expect("netlink"), Some(inode(&a)));
        assert_eq!(unix_peer(u32::MAX).expect("netlink"), None);
    }

    #[test]
    fn a_line_of_the_table() {
        let text = "  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 \
            00:00000000 \
                    00000000     0        0 4711 1 0\n";
        assert_eq!(table(text), [("0100007F:1F90".into(), "00000000:0000".into(), 10, 4711)]);
        assert!(table("rubbish\nmore rubbish\n").is_empty());
    }
}
