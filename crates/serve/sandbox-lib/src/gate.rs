//! The gate of a slot: how its protected part is opened for a run and closed after it.
//!
//! - By protection key, where the CPU has them: the slot is mapped readable and writable under a
//!   key of its own, which is denied to all threads; a run allows it to its thread by one
//!   instruction. When a signal handler returns, the kernel puts the thread's rights back, so an
//!   abort closes the gate too. A process has 15 keys: services take at most [`KEYS`] of them.
//! - By `mprotect` elsewhere, for all threads of the process. The slot is first made a mapping of
//!   its own: opening a part of a larger mapping would split it, and closing would merge it again,
//!   which costs more than the change itself.
//!
//! A process chooses at its first run of a slot, and notes it in its private part, which children
//! inherit as they inherit mappings and keys.

use crate::abi;
use crate::sys;
use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;

/// Slots that have a key, in one process, at most. The rest is the program's.
pub const KEYS: u32 = 8;
/// Protection of an open slot: readable and writable.
const OPEN: i32 = 3;
/// `gates` of a slot: not chosen yet.
const UNKNOWN: u32 = 0;
/// `gates` of a slot: `mprotect`.
const PAGES: u32 = 1;
/// `gates` of a slot: open all the time, in the process of a thread that runs nothing else.
const ALWAYS: u32 = 2;
/// `gates` of a slot: this, plus its key.
const KEY: u32 = 16;

/// A gate that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    slot: usize,
    gate: u32,
}

/// Opens a slot that this thread has claimed.
///
/// # Errors
/// `-errno` of `mprotect`.
pub fn open(slot: usize) -> Result<Opened, isize> {
    let slot = slot % abi::SLOTS;
    // SAFETY: a member has its own private part; the words are atomic.
    let chosen = unsafe { (*abi::private()).gates[slot].load(Relaxed) };
    let gate = if chosen == UNKNOWN { choose(slot) } else { chosen };
    match gate {
        ALWAYS => {}
        PAGES => {
            let answer = sys::protect(bottom(slot), abi::SLOT, OPEN);
            if answer < 0 {
                return Err(answer);
            }
        }
        _ => allow(gate - KEY),
    }
    Ok(Opened { slot, gate })
}

/// Closes it.
pub fn close(opened: Opened) {
    match opened.gate {
        ALWAYS => {}
        PAGES => {
            sys::protect(bottom(opened.slot), abi::SLOT, 0);
        }
        gate => deny(gate - KEY),
    }
}

/// Leaves a slot open for good: for the process of a thread, which runs nothing but this slot.
///
/// # Errors
/// `-errno` of `mprotect`.
pub fn open_always(slot: usize) -> Result<(), isize> {
    let answer = sys::protect(bottom(slot), abi::SLOT, OPEN);
    if answer < 0 {
        return Err(answer);
    }
    // SAFETY: as in `open`.
    unsafe { (*abi::private()).gates[slot % abi::SLOTS].store(ALWAYS, Relaxed) };
    Ok(())
}

/// The key of a gate, as it is noted in the private part.
pub fn key_of(gate: u32) -> Option<i32> {
    gate.checked_sub(KEY).filter(|key| *key < 16).map(|key| key as i32)
}

fn bottom(slot: usize) -> usize {
    abi::PROTECTED + slot % abi::SLOTS * abi::SLOT
}

/// Chooses how this process opens the slot. The slot's claim is held, so no other thread chooses
/// for it.
fn choose(slot: usize) -> u32 {
    // SAFETY: as in `open`.
    let private = unsafe { &*abi::private() };
    let gate = match keyed(slot) {
        Some(key) => KEY + key as u32,
        None => {
            // Neighbours differ in advice, which means nothing for shared memory, so that the
            // kernel keeps them apart.
            sys::advise(bottom(slot), abi::SLOT, 1 + (slot % 2) as i32);
            PAGES
        }
    };
    private.gates[slot].store(gate, Relaxed);
    gate
}

/// Maps the slot under a key of its own, if there is one for it.
fn keyed(slot: usize) -> Option<i32> {
    // SAFETY: as in `open`.
    let private = unsafe { &*abi::private() };
    if private.keyed.load(Relaxed) >= KEYS {
        return None;
    }
    let key = sys::key_alloc() as i32;
    if key < 1 {
        return None;
    }
    if sys::protect_by_key(bottom(slot), abi::SLOT, OPEN, key) < 0 {
        sys::key_free(key);
        return None;
    }
    private.keyed.fetch_add(1, Relaxed);
    Some(key)
}

/// Both rights of a key in the thread's register: no access, no writing.
fn bits(key: u32) -> u32 {
    3 << (2 * (key & 15))
}

fn allow(key: u32) {
    set_rights(rights() & !bits(key));
}

fn deny(key: u32) {
    set_rights(rights() | bits(key));
}

fn rights() -> u32 {
    let rights: u32;
    // SAFETY: this process has a key, so the kernel has enabled the instruction; it reads a
    // register.
    unsafe { asm!("rdpkru", out("eax") rights, in("ecx") 0, out("edx") _, options(nomem, nostack, preserves_flags)) };
    rights
}

fn set_rights(rights: u32) {
    // SAFETY: as above; it changes what this thread may access. Memory accesses stay on their side
    // of it.
    unsafe { asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0, options(nostack, preserves_flags)) };
}
