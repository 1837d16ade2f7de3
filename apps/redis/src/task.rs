//! What runs in the orbit: taking entries in, answering queries, and, for tests and demonstrations, doing harm.
//!
//! The store is a [`Store`], made when the orbit's process starts; a crash loses it, and what the ring still holds is
//! taken in again by the next process.

use std::ffi::{c_long, c_void};
use std::hint::black_box;

use crate::log::{Handover, Log};
use crate::record::Entry;

/// Words of arguments of every call: a hand-over, then what the function wants.
pub const WORDS: usize = 8;

/// Bytes that each call loses once the leak was begun. So few that no call takes long by it: what ends the task is its memory
/// limit, not a deadline.
pub const LEAK: usize = 1 << 20;
/// Bytes that are taken at a time where memory is taken without end.
const PIECE: usize = 4 << 20;

#[derive(Default)]
struct Store {
    log: Log,
    leaking: bool,
}

/// Ways to do harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Writes to address 0.
    Segv = 1,
    /// Calls `abort`.
    Abort,
    /// Never returns.
    Hang,
    /// Takes memory without end.
    Oom,
    /// Loses memory with every later call.
    Leak,
}

impl Fault {
    /// By its name, in any case.
    pub fn named(name: &[u8]) -> Option<Fault> {
        [Fault::Segv, Fault::Abort, Fault::Hang, Fault::Oom, Fault::Leak]
            .into_iter()
            .find(|fault| name.eq_ignore_ascii_case(format!("{fault:?}").as_bytes()))
    }
}

/// Arguments for a call.
pub fn arguments(handover: &Handover, first: u64) -> [u8; WORDS * 8] {
    let mut bytes = [0; WORDS * 8];
    let words = handover.words().into_iter().chain([first, 0]);
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Makes the store.
pub unsafe extern "C" fn begin() -> *mut c_void {
    Box::into_raw(Box::<Store>::default()).cast()
}

/// The store, and what the call brought; the log has taken in what is new.
///
/// # Safety
/// `store` came from [`begin`], `args` are [`arguments`] of a call that named the ring's area.
unsafe fn take_in<'a>(store: *mut c_void, args: *mut c_void) -> (&'a mut Store, u64) {
    // SAFETY: by contract; calls run one after another, so nobody else uses the store.
    let (store, words) = unsafe { (&mut *store.cast::<Store>(), &*args.cast::<[u64; WORDS]>()) };
    let [base, capacity, tail, head, reset_before, max_len, first, _] = *words;
    let handover = Handover::from_words([base, capacity, tail, head, reset_before, max_len]);
    // SAFETY: the replica of the ring's area is as it was when main made the call.
    unsafe { store.log.take_in(&handover) };
    if store.leaking {
        let lost = black_box(vec![1u8; LEAK]);
        std::mem::forget(lost);
    }
    (store, first)
}

/// The orbit's entry: takes in new entries. Returns how many the log holds.
pub unsafe extern "C" fn note(store: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main calls it as `take_in` wants.
    let (store, _) = unsafe { take_in(store, args) };
    store.log.len() as c_long
}

/// Takes in new entries, then pushes the newest ones as one item of data. Returns how many the log holds.
pub unsafe extern "C" fn get(store: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main calls it as `take_in` wants.
    let (store, count) = unsafe { take_in(store, args) };
    let bytes = answer(&store.log, count);
    let mut update = orbit::Update::new();
    update.data(&bytes);
    match orbit::push(&update) {
        Ok(()) => store.log.len() as c_long,
        Err(_) => -1,
    }
}

/// The newest entries as bytes.
fn answer(log: &Log, count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in log.newest(usize::try_from(count).unwrap_or(usize::MAX)) {
        entry.encode(&mut bytes);
    }
    bytes
}

/// Does harm: the fault's number is the first word after the hand-over.
pub unsafe extern "C" fn harm(store: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main calls it as `take_in` wants.
    let (store, fault) = unsafe { take_in(store, args) };
    if fault == Fault::Segv as u64 {
        // SAFETY: none; this is the harm that was asked for.
        unsafe { black_box(std::ptr::null_mut::<u8>()).write_volatile(1) };
    } else if fault == Fault::Abort as u64 {
        // SAFETY: ends this process.
        unsafe { libc::abort() };
    } else if fault == Fault::Hang as u64 {
        loop {
            std::hint::spin_loop();
        }
    } else if fault == Fault::Oom as u64 {
        loop {
            std::mem::forget(black_box(vec![1u8; PIECE]));
        }
    } else if fault == Fault::Leak as u64 {
        store.leaking = true;
    }
    0
}

/// Takes entries out of the bytes that [`get`] pushed; stops where they make no sense.
pub fn entries(mut bytes: &[u8], most: u64) -> Vec<Entry> {
    let mut entries = Vec::new();
    while (entries.len() as u64) < most {
        let Some(entry) = Entry::decode(&mut bytes) else { break };
        entries.push(entry);
    }
    entries
}
