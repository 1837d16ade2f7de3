//! What a sleeping thread waits for: memory, descriptor lists and time limits that its call names.

use crate::facts::WaitFacts;
use orbit_inspect::Memory;
use orbit_linux::status::Status;
use orbit_linux::thread::{self, Call};
use orbit_linux::{pidfd, procfs, socket_info};
use std::os::fd::AsFd;

/// Memory from 16 bytes before a futex on.
const BEFORE: u64 = 16;
const AROUND: usize = 72;
/// The same from the futex on.
const AFTER: usize = 56;
const PAGE: u64 = 4096;
/// Descriptors of a `poll` that are read.
const POLLED: u64 = 256;
/// Descriptors of an epoll set that are handed over: more wait for the world in any case.
const EPOLL: usize = 512;

/// Whether the call's wait depends on the holders of descriptors.
pub(super) fn depends_on_ends(nr: i64) -> bool {
    !matches!(
        nr,
        libc::SYS_futex
            | libc::SYS_nanosleep
            | libc::SYS_clock_nanosleep
            | libc::SYS_wait4
            | libc::SYS_waitid
            | libc::SYS_flock
            | libc::SYS_fcntl
    )
}

/// Reads what the thread waits for.
pub(super) fn read(pid: i32, tid: i32, t: f64, call: &Call) -> WaitFacts {
    let memory = Memory::of(pid);
    let a = call.args;
    let some = |address: u64, len: usize| (address != 0).then(|| memory.vec(address, len));
    let mut w = WaitFacts { t, p: pid, i: tid, nr: call.nr, a, ..WaitFacts::default() };
    match call.nr {
        libc::SYS_futex => {
            let from = a[0].wrapping_sub(BEFORE);
            if from / PAGE == a[0] / PAGE {
                w.w = some(from, AROUND);
            } else {
                w.w0 = some(a[0], AFTER);
            }
            w.to = some(a[3], 16);
            w.alive = w.named_owner().is_some_and(|owner| is_elsewhere(pid, owner));
        }
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
            let text = procfs::text(format!("/proc/{pid}/task/{tid}/fdinfo/{}", a[0] as i32)).unwrap_or_default();
            let mut set = thread::epoll_set(&text);
            set.truncate(EPOLL);
            w.ep = Some(set);
        }
        libc::SYS_poll | libc::SYS_ppoll => {
            w.pf = some(a[0], 8 * a[1].min(POLLED) as usize);
            w.to = if call.nr == libc::SYS_ppoll { some(a[2], 16) } else { None };
        }
        libc::SYS_select | libc::SYS_pselect6 => w.to = some(a[4], 16),
        libc::SYS_nanosleep => w.to = some(a[0], 16),
        libc::SYS_clock_nanosleep => w.to = some(a[2], 16),
        libc::SYS_read
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_write
        | libc::SYS_sendto
        | libc::SYS_sendmsg => {
            let copy = pidfd::open(pid).and_then(|process| pidfd::duplicate(process.as_fd(), a[0] as i32));
            w.tl = copy.is_ok_and(|copy| socket_info::has_time_limit(copy.as_fd()));
        }
        libc::SYS_flock => w.lk = orbit_linux::locks::holders(pid, a[0] as i32),
        libc::SYS_fcntl if a[1] as i32 == libc::F_SETLKW => w.lk = orbit_linux::locks::holders(pid, a[0] as i32),
        _ => {}
    }
    w
}

/// Whether a thread of this id lives, and is not the process' own.
fn is_elsewhere(pid: i32, tid: i32) -> bool {
    !std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
        && !Status::of(tid).unwrap_or_default().has_ended()
}
