//! Message sockets between related processes, with descriptors passed along.
//!
//! `SOCK_SEQPACKET`: messages keep their bounds, and the end of the peer is seen as a message of 0
//! bytes; so empty messages are rejected. Bytes and descriptors that come from an orbit are not to
//! be trusted: what they mean is checked above.

use crate::{Support, check_int, invalid};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// The most descriptors one message carries.
pub const MAX_FDS: usize = 128;

/// Room for the control message of `MAX_FDS` descriptors; u64 for its alignment.
type Control = [u64; 66];

const _: () = {
    // SAFETY: CMSG_SPACE only computes.
    assert!(unsafe { libc::CMSG_SPACE((MAX_FDS * size_of::<RawFd>()) as u32) } as usize <= size_of::<Control>());
};

/// A socket for TCP that is not connected, as one whose connection has ended: calls on it fail, and
/// it is ready for each. Close-on-exec.
///
/// # Errors
/// `EMFILE`, `ENFILE`.
pub fn without_peer() -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    let fd = check_int(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a new descriptor that nothing else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Two ends of a connection, both close-on-exec.
///
/// # Errors
/// `EMFILE`, `ENFILE`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for both.
    check_int(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: the kernel just made both for us.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Sends one message and duplicates of `fds` (at most [`MAX_FDS`]). Blocks while the peer's queue
/// is full, unless the descriptor is non-blocking. Answers the number of bytes: all of them. Never
/// raises SIGPIPE. Async-signal-safe.
///
/// # Errors
/// `EPIPE` or `ECONNRESET` when the peer is gone, `EMSGSIZE` when the message is too large for the
/// socket's buffer, `EAGAIN` on a non-blocking socket, `InvalidInput` for an empty message or too
/// many descriptors.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(fd, bytes, fds, 0)
}

/// The same, without waiting for the peer to take earlier messages.
///
/// # Errors
/// Those of [`send`]; `EAGAIN` while the peer's queue is full, `ETOOMANYREFS` while this user has
/// as many descriptors on their way as one process may have open (`RLIMIT_NOFILE`).
pub fn send_now(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(fd, bytes, fds, libc::MSG_DONTWAIT)
}

fn send_with(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: libc::c_int) -> io::Result<usize> {
    if bytes.is_empty() {
        return Err(invalid("an empty message would be taken for the peer's end".into()));
    }
    if fds.len() > MAX_FDS {
        return Err(invalid(format!("{} descriptors in one message: at most {MAX_FDS}", fds.len())));
    }
    let mut control: Control = [0; size_of::<Control>() / 8];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a msghdr is plain data; zero means "none" for every field.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    if !fds.is_empty() {
        let len = std::mem::size_of_val(fds) as u32;
        msg.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only computes.
        msg.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as _;
        // SAFETY: `control` is aligned and has room for MAX_FDS descriptors (asserted above), so
        // the first header and its data lie inside it. BorrowedFd is a transparent wrapper of the
        // number, which is copied.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const msg);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(len) as _;
            ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(head), len as usize);
        }
    }
    loop {
        // SAFETY: the message's parts live until the call returns.
        let n = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const msg, libc::MSG_NOSIGNAL | flags) };
        if n >= 0 {
            return Ok(n as usize);
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

/// Receives one message into `buf` and appends its descriptors (close-on-exec) to `fds`. Answers
/// its length; 0 when the peer is gone. Blocks unless `nonblocking`.
///
/// # Errors
/// `WouldBlock` when there is none; `InvalidData` when the message was longer than `buf` or carried
/// more than [`MAX_FDS`] descriptors (it is lost then, its descriptors are closed); `EMFILE` when
/// this process had no room for its descriptors (the same); `ECONNRESET` when the peer ended with
/// unread messages.
pub fn receive(fd: BorrowedFd<'_>, buf: &mut [u8], fds: &mut Vec<OwnedFd>, nonblocking: bool) -> io::Result<usize> {
    let mut control: Control = [0; size_of::<Control>() / 8];
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let flags = libc::MSG_CMSG_CLOEXEC | if nonblocking { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: a msghdr is plain data; zero means "none" for every field.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    let n = loop {
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = size_of::<Control>() as _;
        // SAFETY: the message's parts live until the call returns.
        let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut msg, flags) };
        if n >= 0 {
            break n as usize;
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    };
    let before = fds.len();
    // SAFETY: `msg` is as the kernel filled it; the CMSG functions stay inside msg_controllen bytes
    // of `control`.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(&raw const msg) };
    while !head.is_null() {
        // SAFETY: a non-null header lies wholly inside `control`; its data may be unaligned, so it
        // is read unaligned. Every descriptor in an SCM_RIGHTS message was just made for us.
        unsafe {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*head).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(head).cast::<RawFd>();
                for i in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            head = libc::CMSG_NXTHDR(&raw const msg, head);
        }
    }
    if msg.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 || fds.len() - before > MAX_FDS {
        let came = fds.len() - before;
        fds.truncate(before);
        // The kernel cuts the descriptors off too where no further one can be opened: then fewer
        // came than there is room for.
        if msg.msg_flags & libc::MSG_TRUNC == 0 && came <= MAX_FDS {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let why = format!("a message longer than {} bytes or with more than {MAX_FDS} descriptors", buf.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(n)
}

/// The process and the effective user at the other end of a connected UNIX socket, as they were
/// when it was connected.
///
/// # Errors
/// `ENOTCONN`, `ENOTSOCK`.
pub fn peer(fd: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut credentials).cast();
    // SAFETY: at most `length` bytes are written to `credentials`.
    check_int(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut length) })?;
    Ok((credentials.pid, credentials.uid))
}

/// The address family of a socket (`libc::AF_*`).
///
/// # Errors
/// `ENOTSOCK`.
pub fn family(fd: BorrowedFd<'_>) -> io::Result<i32> {
    let (mut family, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    let to = (&raw mut family).cast();
    // SAFETY: at most `length` bytes are written to `family`.
    check_int(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN, to, &raw mut length) })?;
    Ok(family)
}

/// Ends a connection in both directions for every process that has a descriptor of it. One that is
/// closed already is no error.
pub fn shut_down(fd: BorrowedFd<'_>) {
    // SAFETY: no pointers are passed.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Sends one byte and one descriptor through a pair.
pub fn probe() -> Support {
    let tried = (|| {
        let (a, b) = pair()?;
        send(a.as_fd(), &[1], &[a.as_fd()])?;
        let mut got = Vec::new();
        receive(b.as_fd(), &mut [0; 1], &mut got, true)
    })();
    Support::from_result("unix sockets", tried, |_| String::new())
}
