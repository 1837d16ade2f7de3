//! Marks in source for application hang detection (RMK, section 5): a thread enters a section and
//! leaves it by one of its exits.
//!
//! ```
//! static REQUEST: orbit_section::Section = orbit_section::section!("request");
//!
//! fn handle(found: bool) {
//!     let inside = orbit_section::enter(&REQUEST);
//!     if !found {
//!         inside.leave(1); // by exit 1
//!         return;
//!     }
//!     // by exit 0, when the guard value goes
//! }
//! handle(true);
//! ```
//!
//! Owns: the record that `orbit watch` reads from outside (see [`layout`]). Promises: entering and
//! leaving are a few plain stores, below 10 ns a pair; no system call after a thread's first
//! section and a section's first use; no clock is read; a forked child's marks are its own and
//! begin outside all sections, also those that its parent was in, and it waits for no thread that
//! it has not; with no guard about, nothing else happens. Any thread may use any section; sections
//! may nest and overlap. Refuses: a section entered again before it was left (the inner mark does
//! nothing), more than [`layout::SECTIONS`] sections or [`layout::SLOTS`] threads at a time (those
//! beyond are not marked).
//!
//! A thread that uses more CPU inside a section than ever usual, or sits in it without running, is
//! reported; so waits without an end of their own (`accept`, `epoll_wait`) belong outside.
//!
//! Several copies of this library in one process (a plug-in may be linked with one of its own) have
//! a record and sections each; `orbit watch` reads 16 of them, and finds one that comes after
//! another within ten seconds.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod layout;

use layout::{CELLS_AT, Cell, EXITS, Header, MAGIC, NAME_MAX, NAMES_AT, SECTIONS, SIZE, SLOTS, SLOTS_AT, Slot};
use orbit_linux::map::Mapping;
use orbit_linux::{memfd, process};
use std::cell::Cell as Local;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, compiler_fence};
use std::time::Duration;

/// A stretch of code with one entry. Make it with [`section!`].
#[derive(Debug)]
pub struct Section {
    name: &'static str,
    /// Number plus one; 0 before the first use; [`NONE`] if there was no room.
    id: AtomicU32,
}

/// No room for this section.
const NONE: u32 = u32::MAX;

impl Section {
    /// A section of this name; names longer than [`NAME_MAX`] bytes are cut.
    pub const fn new(name: &'static str) -> Section {
        Section { name, id: AtomicU32::new(0) }
    }

    fn number(&self) -> u32 {
        match self.id.load(Ordering::Relaxed) {
            0 => {
                let id = register(self.name.as_bytes()).map_or(NONE, |n| n + 1);
                self.id.store(id, Ordering::Relaxed);
                id
            }
            id => id,
        }
    }
}

/// A section with this name, for a `static`.
#[macro_export]
macro_rules! section {
    ($name:expr) => {
        $crate::Section::new($name)
    };
}

/// The thread is inside a section while this lives.
#[derive(Debug)]
#[must_use = "the section is left at once if this is dropped"]
pub struct Inside {
    /// The cell of this thread, null if nothing is marked.
    cell: *const Cell,
}

/// Enters a section, until the answer is dropped (exit 0) or passed to [`Inside::leave`].
#[inline]
pub fn enter(section: &Section) -> Inside {
    let id = section.number();
    let slot = if id == NONE { None } else { slot() };
    let cell = slot.and_then(|slot| go_in(slot, id as usize - 1));
    Inside { cell: cell.map_or(std::ptr::null(), std::ptr::from_ref) }
}

impl Inside {
    /// Leaves by this exit, 0 to [`EXITS`] - 1; higher ones count as the last.
    #[inline]
    pub fn leave(self, exit: u32) {
        self.out(exit);
        std::mem::forget(self);
    }

    #[inline]
    fn out(&self, exit: u32) {
        if !self.cell.is_null() {
            // SAFETY: set by `enter` only, to a cell in the mapping, which stays for ever.
            unsafe { go_out(&*self.cell, exit) };
        }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        self.out(0);
    }
}

/// Marks the entry to a section by its number; nothing if the thread is inside already.
#[inline]
fn go_in(slot: &Slot, number: usize) -> Option<&Cell> {
    let cell = &slot.cells[number];
    let seq = cell.seq.load(Ordering::Relaxed);
    if seq & 1 == 1 {
        return None;
    }
    cell.seq.store(seq.wrapping_add(1), Ordering::Relaxed);
    slot.last.store((CELLS_AT + number * size_of::<Cell>()) as u32, Ordering::Relaxed);
    compiler_fence(Ordering::Release);
    Some(cell)
}

/// Marks an exit; nothing happens if the thread is not inside.
#[inline]
fn go_out(cell: &Cell, exit: u32) {
    let seq = cell.seq.load(Ordering::Relaxed);
    if seq & 1 == 0 {
        return;
    }
    let count = &cell.exits[(exit as usize).min(EXITS - 1)];
    count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    cell.seq.store(seq.wrapping_add(1), Ordering::Release);
}

/// Ends, by no exit, what a former user of the slot was inside of.
fn go_outside(slot: &Slot) {
    for c in &slot.cells {
        let seq = c.seq.load(Ordering::Relaxed);
        if seq & 1 == 1 {
            c.seq.store(seq.wrapping_add(1), Ordering::Relaxed);
        }
    }
}

/// True while a thread writes a name. No mutex: a forked child, which may have been made meanwhile,
/// lets it go.
static WRITING: AtomicBool = AtomicBool::new(false);

/// While this lives the names are this thread's to write.
struct Names;

impl Names {
    fn lock() -> Names {
        while WRITING.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Asleep, so that whoever holds it runs, however urgent this thread is.
            std::thread::sleep(Duration::from_micros(20));
        }
        Names
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        WRITING.store(false, Ordering::Release);
    }
}

/// Registers a name; the number of the section with this name, the same each time. `None`: no room.
pub fn register(name: &[u8]) -> Option<u32> {
    let name = &name[..name.len().min(NAME_MAX)];
    let base = base()?;
    let _one = Names::lock();
    // SAFETY: the mapping begins with a header and stays for ever.
    let header = unsafe { &*base.cast::<Header>() };
    let known = header.sections.load(Ordering::Relaxed);
    // SAFETY: the names lie inside the mapping; they are written under the lock only, each before
    // it counts.
    let at = |i: u32| unsafe { base.add(NAMES_AT + i as usize * 64) };
    for i in 0..known {
        // SAFETY: 64 bytes of a name that nobody writes any more.
        let old = unsafe { std::slice::from_raw_parts(at(i), 64) };
        if old[..name.len()] == *name && old[name.len()] == 0 {
            return Some(i);
        }
    }
    if known as usize >= SECTIONS {
        return None;
    }
    // All 64 bytes: in a forked child there may be a part of a name that its parent was writing.
    let mut padded = [0; 64];
    padded[..name.len()].copy_from_slice(name);
    // SAFETY: room for 64 bytes.
    unsafe { std::ptr::copy_nonoverlapping(padded.as_ptr(), at(known), padded.len()) };
    header.sections.store(known + 1, Ordering::Release);
    Some(known)
}

/// For the C face: enters section `id`; `false` if the thread is inside already or `id` is none.
#[inline]
pub fn enter_number(id: u32) -> bool {
    (id as usize) < SECTIONS && slot().is_some_and(|slot| go_in(slot, id as usize).is_some())
}

/// For the C face: leaves section `id` by `exit`; nothing happens if the thread is not inside.
#[inline]
pub fn leave_number(id: u32, exit: u32) {
    if (id as usize) < SECTIONS
        && let Some(slot) = slot()
    {
        go_out(&slot.cells[id as usize], exit);
    }
}

/// For marks that a compiler writes inline: the calling thread's slot, stored in `cached` too,
/// where it stays until the thread ends; then another thread may get the slot, and this one's marks
/// go nowhere. Never null. Of a thread with more than [`CACHES`] such places further ones are not
/// written, and ask each time.
///
/// # Safety
/// `cached` is thread-local memory of the calling thread's, readable until the thread has ended.
pub unsafe fn slot_cached(cached: *mut *const Slot) -> *const Slot {
    let slot = match SLOT.get() {
        slot if slot.is_null() => first_use(),
        slot => slot,
    };
    let mut places = CACHED.get();
    if let Some(free) = places.iter_mut().find(|place| place.is_null() || **place == cached) {
        *free = cached;
        CACHED.set(places);
        // SAFETY: memory of this thread's, by contract.
        unsafe { *cached = slot };
    }
    slot
}

/// Shared objects with inline marks, of which a thread's slot is cached.
pub const CACHES: usize = 8;

thread_local! {
    /// This thread's slot; null before the first use.
    static SLOT: Local<*const Slot> = const { Local::new(std::ptr::null()) };
    /// Places of this thread's that have the slot's address.
    static CACHED: Local<[*mut *const Slot; CACHES]> = const { Local::new([std::ptr::null_mut(); CACHES]) };
    /// Gives the slot back when the thread ends.
    static LEASE: Lease = const { Lease };
}

struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        let slot = SLOT.replace(&raw const NO_ROOM);
        for place in CACHED.get().into_iter().filter(|place| !place.is_null()) {
            // Another object may be where one was that is gone.
            // SAFETY: readable until this thread has ended, by the contract of `slot_cached`.
            unsafe {
                if *place == slot {
                    *place = &raw const NO_ROOM;
                }
            }
        }
        if !slot.is_null() && slot != &raw const NO_ROOM {
            // SAFETY: a slot in the mapping, which stays for ever.
            unsafe { (*slot).tid.store(0, Ordering::Release) };
        }
    }
}

/// Written by threads for which there is no slot, and read by nobody.
// SAFETY: all-zero bytes are valid for atomics and integers.
static NO_ROOM: Slot = unsafe { std::mem::zeroed() };

/// The mapping; null before the first use, [`NOWHERE`] where it is not available.
static BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

const NOWHERE: *mut u8 = std::ptr::without_provenance_mut(1);

/// This thread's slot; nothing if nothing can be marked.
#[inline]
fn slot() -> Option<&'static Slot> {
    let mut slot = SLOT.get();
    if slot.is_null() {
        slot = first_use();
    }
    if slot == &raw const NO_ROOM {
        return None;
    }
    // SAFETY: the slot is in the mapping, which stays for ever.
    Some(unsafe { &*slot })
}

#[cold]
fn first_use() -> *const Slot {
    let slot = take_slot().unwrap_or(&raw const NO_ROOM);
    SLOT.set(slot);
    // A thread that is ending already gets no lease: then its slot is free once its thread is gone.
    let _ = LEASE.try_with(|_| ());
    slot
}

fn take_slot() -> Option<*const Slot> {
    let base = base()?;
    let tid = process::own_thread_id() as u32;
    // SAFETY: the mapping begins with a header and stays for ever.
    let header = unsafe { &*base.cast::<Header>() };
    for i in 0..SLOTS {
        // SAFETY: slots lie inside the mapping and are made of atomics.
        let slot = unsafe { &*base.add(SLOTS_AT + i * size_of::<Slot>()).cast::<Slot>() };
        if slot.tid.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            // A thread that ended inside a section has left it.
            go_outside(slot);
            header.slots.fetch_max(i as u32 + 1, Ordering::Release);
            return Some(slot);
        }
    }
    None
}

/// The mapping, made when first needed; nothing where it is not available. No thread waits for
/// another one that makes it: a child forked meanwhile would wait for ever.
fn base() -> Option<*mut u8> {
    let base = BASE.load(Ordering::Acquire);
    let base = if base.is_null() { make() } else { base };
    (base != NOWHERE).then_some(base)
}

/// Makes the mapping, or gives that of a thread that was faster.
#[cold]
fn make() -> *mut u8 {
    // Before anybody knows of the mapping, so that no child is without it; twice does no harm.
    // SAFETY: the handler is a plain function that may run in a forked child.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    let new = map();
    let at = new.as_ref().map_or(NOWHERE, Mapping::as_ptr);
    match BASE.compare_exchange(std::ptr::null_mut(), at, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // It stays for ever.
            new.map(Mapping::leak);
            at
        }
        // Ours, which nothing else knows of, is unmapped here.
        Err(faster) => faster,
    }
}

fn map() -> Option<Mapping> {
    let fd = memfd::create("rmk-sections", SIZE, false).ok()?;
    let mapping = Mapping::private_file(fd.as_fd(), SIZE).ok()?;
    // SAFETY: the mapping begins with room for a header, of zeros.
    let header = unsafe { &*mapping.as_ptr().cast::<Header>() };
    header.slot_size.store(size_of::<Slot>() as u32, Ordering::Relaxed);
    header.magic.store(MAGIC, Ordering::Release);
    Some(mapping)
}

/// In a forked child only the forking thread is left, and it has a new id. What it is inside of its
/// parent entered: the child's own marks begin outside, and leaving what it inherited does nothing.
/// Only stores.
extern "C" fn in_child() {
    let base = BASE.load(Ordering::Acquire);
    if base.is_null() || base == NOWHERE {
        return;
    }
    // Whoever was writing a name is not in this process, or continues when this returns; the name
    // does not count yet.
    WRITING.store(false, Ordering::Relaxed);
    let own = SLOT.get();
    // SAFETY: the child has its own copy of the mapping.
    let header = unsafe { &*base.cast::<Header>() };
    for i in 0..(header.slots.load(Ordering::Relaxed) as usize).min(SLOTS) {
        // SAFETY: as in `take_slot`.
        let slot = unsafe { &*base.add(SLOTS_AT + i * size_of::<Slot>()).cast::<Slot>() };
        let tid = if std::ptr::eq(slot, own) {
            go_outside(slot);
            process::own_thread_id() as u32
        } else {
            0
        };
        // A reader that finds the thread finds it outside.
        slot.tid.store(tid, Ordering::Release);
    }
}
