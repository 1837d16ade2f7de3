//! Descriptors that a service's owner gave it: its thread has them, and the handler uses them by
//! their place, with the rights that they were given with. No call here waits: that a descriptor is
//! ready is an event.

use crate::abi::{self, READ, WRITE};
use crate::calls::{NO_HANDLE, NO_RIGHT, within};
use crate::sys;

/// `-EINVAL`.
const INVALID: i64 = -22;
/// Bytes of an address at most: IPv6's.
const ADDRESS: usize = 28;

/// The other end of a datagram: `struct orbit_peer`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Bytes of the address; 0: none.
    pub length: u32,
    /// `struct sockaddr_in` or `sockaddr_in6`.
    pub address: [u8; ADDRESS],
}

/// Does something with the descriptor in this place, if the handler has the right to.
fn with(place: u64, right: u32, body: impl FnOnce(i32) -> i64) -> i64 {
    within(|slot, run| {
        let service = &abi::directory().services[slot % abi::SLOTS];
        // Only the thread has the descriptors.
        match service.file.get(place as usize).filter(|file| file.rights != 0 && run.may_wait != 0) {
            None => NO_HANDLE,
            Some(file) if file.rights & right == 0 => NO_RIGHT,
            Some(file) => body(file.number),
        }
    })
}

/// Receives or reads into `to`, at most `bytes`. The number of bytes; `-EAGAIN` when there are none
/// now, `-EBADF`, `-EACCES`, or what the kernel answers. `peer`, if not null: the sender.
///
/// # Safety
/// `to` has so many bytes; `peer` is null or points to a [`Peer`].
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_receive(place: u64, to: *mut u8, bytes: u64, peer: *mut Peer) -> i64 {
    with(place, READ, |file| {
        let mut length = ADDRESS as u32;
        let mut address = [0u8; ADDRESS];
        let from = if peer.is_null() { [0; 2] } else { [&raw mut address as usize, &raw mut length as usize] };
        // SAFETY: the two of `from` are locals; the rest is the service's.
        let received = unsafe { sys::receive_now(file, to as usize, bytes as usize, from) };
        if received >= 0 && !peer.is_null() {
            // SAFETY: the caller's promise; a pointer that breaks it is a fault in a handler, which
            // aborts it.
            unsafe { *peer = Peer { length: length.min(ADDRESS as u32), address } };
        }
        received as i64
    })
}

/// Sends or writes `bytes` of `from`. The number of bytes; errors as of [`orbit_receive`]. `peer`,
/// if not null: where a datagram goes.
///
/// # Safety
/// `from` has so many bytes; `peer` is null or points to a [`Peer`].
#[cfg_attr(sandbox_object, unsafe(no_mangle))]
pub unsafe extern "C" fn orbit_send(place: u64, from: *const u8, bytes: u64, peer: *const Peer) -> i64 {
    with(place, WRITE, |file| {
        let mut to = [0usize; 2];
        let copy;
        if !peer.is_null() {
            // SAFETY: as in `orbit_receive`.
            copy = unsafe { *peer };
            if copy.length as usize > ADDRESS {
                return INVALID;
            }
            if copy.length > 0 {
                to = [&raw const copy.address as usize, copy.length as usize];
            }
        }
        // SAFETY: the address is a local; the rest is the service's.
        unsafe { sys::send_now(file, from as usize, bytes as usize, to) as i64 }
    })
}
