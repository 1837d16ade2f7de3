//! The record that a marked program keeps and a guard reads from outside.
//!
//! One mapping a process, private, of a file named [`NAME`], so that it is found in
//! `/proc/PID/maps` and a forked child has a copy of its own, in which its one thread is outside
//! all sections. Written by the program only; the guard reads it with `process_vm_readv` and trusts
//! nothing in it.
//!
//! | bytes | what | writer |
//! |---|---|---|
//! | 0.. | [`Header`] | once, before `magic` |
//! | 4096.. | [`SECTIONS`] names of 64 bytes, ended by a zero | registration, before `sections` counts them |
//! | 16384.. | [`SLOTS`] slots of [`Slot`], one a thread | the thread that owns the slot |
//!
//! What the compiler marks (`clang/rmk_sections.cpp`) writes cells inline: it knows where in a slot
//! cell `s` is, and uses the 32 bytes before the first for a section that got no number.
//!
//! A slot: `cells[s].seq` is odd while the thread is inside section `s`; half of it, rounded up, is
//! the number of times it was entered. `cells[s].exits[e]` counts how often it was left by exit
//! `e`. A cell is written by its thread only, the count of the exit before `seq`, so a reader that
//! sees `seq` even finds the exit counted.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Name of the file, as in `/memfd:rmk-sections`.
pub const NAME: &str = "rmk-sections";
/// What the mapping begins with.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"RMKSECT1");
/// Sections of a process at most.
pub const SECTIONS: usize = 126;
/// Exits distinguished; higher numbers count as the last.
pub const EXITS: usize = 7;
/// Threads at a time at most; further ones are not marked.
pub const SLOTS: usize = 2048;
/// Longest name, without the zero.
pub const NAME_MAX: usize = 63;
/// Where the names begin.
pub const NAMES_AT: usize = 4096;
/// Where the slots begin.
pub const SLOTS_AT: usize = 16384;
/// Where in a slot its cells begin.
pub const CELLS_AT: usize = std::mem::offset_of!(Slot, cells);
/// Size of the mapping.
pub const SIZE: usize = SLOTS_AT + SLOTS * size_of::<Slot>();

/// Start of the mapping.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`], stored last.
    pub magic: AtomicU64,
    /// Size of a slot in bytes.
    pub slot_size: AtomicU32,
    /// Number of names that are there.
    pub sections: AtomicU32,
    /// Slots below this have been used.
    pub slots: AtomicU32,
}

/// What one thread does in one section.
#[repr(C)]
#[derive(Debug)]
pub struct Cell {
    /// Odd inside.
    pub seq: AtomicU32,
    /// Times left, by exit.
    pub exits: [AtomicU32; EXITS],
}

/// One thread.
#[repr(C)]
#[derive(Debug)]
pub struct Slot {
    /// Thread id in the program's own namespace; 0 if the slot is free.
    pub tid: AtomicU32,
    /// Where in the slot the cell begins whose section was entered last, in bytes; 0 before the
    /// first. If the thread is inside of that one, it is the innermost.
    pub last: AtomicU32,
    _pad: [u32; 6],
    /// Written inline for sections without a number; read by nobody.
    _nobodys: Cell,
    /// By section.
    pub cells: [Cell; SECTIONS],
}

const _: () = assert!(std::mem::offset_of!(Slot, cells) == 64 && std::mem::offset_of!(Cell, exits) == 4);
const _: () = assert!(std::mem::offset_of!(Slot, last) == 4);
const _: () = assert!(size_of::<Slot>() == 4096 && size_of::<Cell>() == 32 && NAMES_AT + SECTIONS * 64 <= SLOTS_AT);
