//! Descriptors that a service's owner gave it, and connections that the service accepted: its
//! thread has them, and the handler uses them by their place, with the rights and at the rate that
//! they were given with. No call here waits: that a descriptor is ready is an event.

use crate::abi::{self, ACCEPT, FILES, Files, READ, SEND, WRITE};
use crate::calls::{NO_HANDLE, NO_RIGHT, within};
use crate::sys;
use core::sync::atomic::Ordering::Relaxed;

/// `-EINVAL`.
const INVALID: i64 = -22;
/// `-EMFILE`: as many connections as there are places.
const FULL: i64 = -24;
/// `-EDQUOT`: above the rate.
const TOO_FAST: i64 = -122;
/// Bytes of an address at most: IPv6's.
const ADDRESS: usize = 28;
/// Calls may come in bursts: of what the rate allows in so long, nanoseconds.
const BURST_NS: u64 = 100_000_000;

/// The other end of a datagram: `struct orbit_peer`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Bytes of the address; 0: none.
    pub length: u32,
    /// `struct sockaddr_in` or `sockaddr_in6`.
    pub address: [u8; ADDRESS],
}

/// A place's descriptor.
#[derive(Clone, Copy)]
struct Open {
    number: i32,
    rights: u32,
    /// The place that was given: itself, or its listener.
    given: usize,
}

/// What this process has.
fn files() -> &'static Files {
    // SAFETY: an agent has its own private part; the words are atomic.
    unsafe { &(*abi::private()).files }
}

/// The descriptor in a place of this service.
fn open(slot: usize, place: u64) -> Option<Open> {
    let service = &abi::directory().services[slot % abi::SLOTS];
    let place = place as usize;
    if let Some(file) = service.file.get(place) {
        let is_closed = files().closed.load(Relaxed) & 1 << place != 0;
        let rights = if is_closed { 0 } else { file.rights.load(Relaxed) };
        return (rights != 0).then_some(Open { number: file.number, rights, given: place });
    }
    let at = place.wrapping_sub(FILES);
    let number = files().connection.get(at)?.load(Relaxed) - 1;
    let given = files().listener.get(at)?.load(Relaxed) as usize;
    let rights = service.file.get(given)?.rights.load(Relaxed) & (READ | WRITE);
    (number >= 0).then_some(Open { number, rights, given })
}

/// Whether one more call is within the rate. One that is not is tried again: the handler is started
/// when it is.
fn is_slow_enough(slot: usize, place: u64, given: usize) -> bool {
    let service = &abi::directory().services[slot % abi::SLOTS];
    let (Some(file), Some(next)) = (service.file.get(given), files().next_at.get(given)) else { return false };
    if file.every_ns == 0 {
        return true;
    }
    let now = sys::now();
    let due = next.load(Relaxed).max(now);
    if due - now > BURST_NS {
        files().limited.fetch_or(1 << (place & 63), Relaxed);
        abi::control(slot).refused.fetch_add(1, Relaxed);
        return false;
    }
    next.store(due.saturating_add(file.every_ns), Relaxed);
    true
}

/// Does something with the descriptor in this place, if the handler has the right to.
fn with(place: u64, right: u32, body: impl FnOnce(&Open) -> i64) -> i64 {
    within(|slot, run| {
        // Only the thread has the descriptors.
        match open(slot, place).filter(|_| run.may_wait != 0) {
            None => NO_HANDLE,
            Some(file) if file.rights & right == 0 => NO_RIGHT,
            Some(file) if !is_slow_enough(slot, place, file.given) => TOO_FAST,
            Some(file) => {
                let done = body(&file);
                if done >= 0 {
                    files().done.fetch_add(1, Relaxed);
                }
                done
            }
        }
    })
}

/// Reads into `to`, at most `bytes`. The number of bytes, 0 at the end; `-EAGAIN` when there are
/// none now, `-EBADF`, `-EACCES`, `-EDQUOT` above the rate, or what the kernel answers.
///
/// # Safety
/// `to` has so many bytes.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_read(place: u64, to: *mut u8, bytes: u64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { orbit_recv(place, to, bytes, core::ptr::null_mut()) }
}

/// As [`orbit_read`]; `peer`, if not null: the sender.
///
/// # Safety
/// As there; `peer` is null or points to a [`Peer`].
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_recv(place: u64, to: *mut u8, bytes: u64, peer: *mut Peer) -> i64 {
    with(place, READ, |file| {
        let mut length = ADDRESS as u32;
        let mut address = [0u8; ADDRESS];
        let from = if peer.is_null() { [0; 2] } else { [&raw mut address as usize, &raw mut length as usize] };
        // SAFETY: the two of `from` are locals; the rest is the service's.
        let received = unsafe { sys::receive_now(file.number, to as usize, bytes as usize, from) };
        if received >= 0 && !peer.is_null() {
            // SAFETY: the caller's promise; a pointer that breaks it is a fault in a handler, which
            // aborts it.
            unsafe { *peer = Peer { length: length.min(ADDRESS as u32), address } };
        }
        received as i64
    })
}

/// Writes `bytes` of `from` to the peer that the descriptor is connected to. The number of bytes;
/// errors as of [`orbit_read`].
///
/// # Safety
/// `from` has so many bytes.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_write(place: u64, from: *const u8, bytes: u64) -> i64 {
    with(place, WRITE, |file| {
        // SAFETY: no address; the rest is the service's.
        unsafe { sys::send_now(file.number, from as usize, bytes as usize, [0; 2]) as i64 }
    })
}

/// Sends a datagram to an address. The number of bytes; errors as of [`orbit_read`].
///
/// # Safety
/// `from` has so many bytes; `peer` points to a [`Peer`].
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_send(place: u64, from: *const u8, bytes: u64, peer: *const Peer) -> i64 {
    with(place, SEND, |file| {
        // SAFETY: the caller's promise; a pointer that breaks it is a fault in a handler, which
        // aborts it.
        let copy = unsafe { *peer };
        if copy.length == 0 || copy.length as usize > ADDRESS {
            return INVALID;
        }
        let to = [&raw const copy.address as usize, copy.length as usize];
        // SAFETY: the address is a local; the rest is the service's.
        unsafe { sys::send_now(file.number, from as usize, bytes as usize, to) as i64 }
    })
}

/// Accepts a connection that waits. Its place; `-EAGAIN` when none does, `-EMFILE` when all places
/// are taken; errors as of [`orbit_read`].
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub extern "C" fn orbit_accept(place: u64) -> i64 {
    with(place, ACCEPT, |listener| {
        let files = files();
        let Some(at) = files.connection.iter().position(|number| number.load(Relaxed) == 0) else { return FULL };
        let number = sys::accept_now(listener.number);
        if number < 0 {
            return number as i64;
        }
        let place = FILES + at;
        let watched = sys::event_add(files.poll.load(Relaxed) - 1, number as i32, place as u64);
        if watched < 0 {
            sys::close(number as i32);
            return watched as i64;
        }
        if let (Some(to), Some(of)) = (files.connection.get(at), files.listener.get(at)) {
            of.store(listener.given as u32, Relaxed);
            to.store(number as i32 + 1, Relaxed);
        }
        place as i64
    })
}

/// Closes a place: the service cannot use it any more. 0, or `-EBADF`.
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub extern "C" fn orbit_close(place: u64) -> i64 {
    within(|slot, run| {
        let Some(file) = open(slot, place).filter(|_| run.may_wait != 0) else { return NO_HANDLE };
        match files().connection.get((place as usize).wrapping_sub(FILES)) {
            Some(connection) => connection.store(0, Relaxed),
            // The host has it too: it takes the rights away, and closes it.
            None => {
                files().closed.fetch_or(1 << place, Relaxed);
                abi::control(slot).closed.fetch_or(1 << place, Relaxed);
            }
        }
        sys::close(file.number);
        0
    })
}

/// Lets the thread's descriptor for events watch what its service was given.
pub(crate) fn watch(slot: usize, events: i32) {
    files().poll.store(events + 1, Relaxed);
    for (place, file) in abi::directory().services[slot % abi::SLOTS].file.iter().enumerate() {
        if file.rights.load(Relaxed) & (READ | ACCEPT) != 0 {
            sys::event_add(events, file.number, place as u64);
        }
    }
}

/// Successful calls so far.
pub(crate) fn done() -> u64 {
    files().done.load(Relaxed)
}

/// Whether a place has something to read or to accept now.
pub(crate) fn is_ready(slot: usize, place: u64) -> bool {
    open(slot, place).is_some_and(|file| sys::is_ready(file.number))
}

/// The places whose calls were above their rate and are not any more; when the next one is.
pub(crate) fn unlimited(slot: usize, now: u64) -> (u64, Option<u64>) {
    let mut left = files().limited.load(Relaxed);
    let (mut ready, mut next) = (0u64, None);
    while left != 0 {
        let place = u64::from(left.trailing_zeros());
        left &= left - 1;
        let due = open(slot, place).and_then(|file| files().next_at.get(file.given));
        match due.map(|due| due.load(Relaxed).saturating_sub(BURST_NS)).filter(|at| *at > now) {
            Some(at) => next = Some(next.map_or(at, |earlier: u64| earlier.min(at))),
            None => ready |= 1 << place,
        }
    }
    files().limited.fetch_and(!ready, Relaxed);
    (ready, next)
}
