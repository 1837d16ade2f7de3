//! What runs in the orbit: taking entries in, answering queries, and, for tests and demonstrations,
//! doing harm.
//!
//! The store is a [`Store`], made when the orbit's process starts; a crash loses it, and what the
//! ring still holds is taken in again by the next process.

use std::ffi::{c_long, c_void};
use std::hint::black_box;

use crate::log::{Handover, Log};
use crate::record::MAX_RECORD;

/// Words of arguments of every call: a hand-over, then what the function wants.
pub const WORDS: usize = 8;

/// Bytes that each call loses once the leak was begun. So few that no call takes long by it: what
/// ends the task is its memory limit, not a deadline.
pub const LEAK: usize = 1 << 20;
/// Bytes after which entries are pushed: an update may hold 64 MiB, and main and the orbit have
/// each a few of them in hand.
const PIECE: usize = 1 << 20;
/// Bytes after which a call brings no more entries: so many take no call long enough to meet its
/// deadline, however many entries are asked for.
const MOST_A_CALL: usize = 8 << 20;
/// A call that brings fewer entries has brought all there are.
pub const FEWEST_IF_MORE: u64 = (MOST_A_CALL / MAX_RECORD) as u64;
/// Bytes that are taken at a time where memory is taken without end.
const GULP: usize = 4 << 20;

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
    /// Recurses until the stack ends.
    Recursion,
    /// kill -9 of its own process.
    Kill,
}

impl Fault {
    /// By its name, in any case.
    pub fn named(name: &[u8]) -> Option<Fault> {
        [Fault::Segv, Fault::Abort, Fault::Hang, Fault::Oom, Fault::Leak, Fault::Recursion, Fault::Kill]
            .into_iter()
            .find(|fault| name.eq_ignore_ascii_case(format!("{fault:?}").as_bytes()))
    }
}

/// Arguments for a call.
pub fn arguments(handover: &Handover, words: [u64; 2]) -> [u8; WORDS * 8] {
    let mut bytes = [0; WORDS * 8];
    let words = handover.words().into_iter().chain(words);
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
unsafe fn take_in<'a>(store: *mut c_void, args: *mut c_void) -> (&'a mut Store, [u64; 2]) {
    // SAFETY: by contract; calls run one after another, so nothing else uses the store.
    let (store, words) = unsafe { (&mut *store.cast::<Store>(), &*args.cast::<[u64; WORDS]>()) };
    let [base, capacity, tail, head, reset_before, max_len, first, second] = *words;
    let handover = Handover::from_words([base, capacity, tail, head, reset_before, max_len]);
    // SAFETY: the replica of the ring's area is as it was when main made the call.
    unsafe { store.log.take_in(&handover) };
    if store.leaking {
        let lost = black_box(vec![1u8; LEAK]);
        std::mem::forget(lost);
    }
    (store, [first, second])
}

/// The orbit's entry: takes in new entries. Returns how many the log holds.
pub unsafe extern "C" fn note(store: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main calls it as `take_in` wants.
    let (store, _) = unsafe { take_in(store, args) };
    store.log.len() as c_long
}

/// Takes in new entries, then pushes the newest of those older than an id, so many [`PIECE`]s of
/// data as they need, but not much more than [`MOST_A_CALL`] of them. Returns how many it pushed;
/// -1 if it could not, and why is pushed last.
pub unsafe extern "C" fn get(store: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main calls it as `take_in` wants.
    let (store, [count, before]) = unsafe { take_in(store, args) };
    answer(&store.log, count, before).unwrap_or_else(|why| {
        // Where not even this can be pushed, main says that no reason came.
        let _ = push(why.to_string().as_bytes());
        -1
    })
}

fn answer(log: &Log, count: u64, before: u64) -> orbit::Result<c_long> {
    let (mut bytes, mut pushed, mut all) = (Vec::new(), 0, 0);
    for entry in log.before(before).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        entry.encode(&mut bytes);
        pushed += 1;
        if bytes.len() >= PIECE {
            push(&bytes)?;
            all += bytes.len();
            bytes.clear();
        }
        if all >= MOST_A_CALL {
            break;
        }
    }
    push(&bytes)?;
    Ok(pushed)
}

fn push(bytes: &[u8]) -> orbit::Result<()> {
    let mut update = orbit::Update::new();
    update.data(bytes);
    orbit::push(&update)
}

/// Does harm: the fault's number is the first word after the hand-over.
pub unsafe extern "C" fn harm(store: *mut c_void, args: *mut c_void) -> c_long {
    // SAFETY: main calls it as `take_in` wants.
    let (store, [fault, _]) = unsafe { take_in(store, args) };
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
            std::mem::forget(black_box(vec![1u8; GULP]));
        }
    } else if fault == Fault::Leak as u64 {
        store.leaking = true;
    } else if fault == Fault::Recursion as u64 {
        black_box(recurse_for_ever(1));
    } else if fault == Fault::Kill as u64 {
        // SIGKILL to a process's own pid does not fail.
        let _ = orbit_linux::signals::send(std::process::id() as i32, libc::SIGKILL);
    }
    0
}

#[inline(never)]
fn recurse_for_ever(depth: usize) -> usize {
    let frame = black_box([depth; 64]);
    if depth == 0 { 0 } else { recurse_for_ever(depth.wrapping_add(1)) + frame[depth % 64] }
}
