//! Attributes that programs publish of themselves: how large a cache may be, how long a connection
//! may be idle. A service asks for a value; the program applies it in a thread of its own and
//! reports what it has then.
//!
//! The table lies in the control part, which every member can write: a wrong word there makes a
//! program shrink or grow within the range that it checks itself, nothing else.

use crate::sys;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32};

/// Attributes that all programs of a region can publish together.
pub const PUBLISHED: usize = 64;

/// One attribute. All zeros is a free place.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Published {
    /// The program; 0: the place is free. Written first by the program that takes the place.
    pub process: AtomicI32,
    /// A class of [`crate::attribute`]; 0: the place is not complete yet. Written last.
    pub class: AtomicU32,
    /// The range that the program accepts.
    pub min: AtomicI64,
    /// See `min`.
    pub max: AtomicI64,
    /// What the program has: it writes this.
    pub present: AtomicI64,
    /// What services asked for last.
    pub wanted: AtomicI64,
    /// Raised with each value asked for: the program sleeps on this word.
    pub changes: AtomicU32,
    /// The number of changes that `present` covers: the program writes this.
    pub applied: AtomicU32,
    /// Free.
    pub reserved: AtomicI64,
}

/// All places.
pub type Table = [Published; PUBLISHED];

/// The place of a program's attribute.
pub fn find(table: &Table, class: u32, process: i32) -> Option<&Published> {
    table.iter().find(|place| {
        process != 0 && place.process.load(Acquire) == process && place.class.load(Acquire) == class && class != 0
    })
}

/// Takes a place for a program. One that published the class before gets the same; places of
/// processes that are gone are free. `None` when all are taken.
pub fn publish(table: &Table, class: u32, process: i32, range: (i64, i64), present: i64) -> Option<&Published> {
    let fill = |place: &Published| {
        place.min.store(range.0, Relaxed);
        place.max.store(range.1, Relaxed);
        place.present.store(present, Relaxed);
        place.wanted.store(present, Relaxed);
        place.applied.store(place.changes.load(Relaxed), Relaxed);
        place.class.store(class, Release);
    };
    if let Some(place) = find(table, class, process) {
        fill(place);
        return Some(place);
    }
    let place = table.iter().find(|place| {
        let holder = place.process.load(Acquire);
        let is_free = holder == 0 || sys::probe_process(holder) == -3;
        is_free && place.process.compare_exchange(holder, process, AcqRel, Relaxed).is_ok()
    })?;
    fill(place);
    Some(place)
}

impl Published {
    /// Asks for a value, which the program's range bounds, and wakes the program.
    pub fn ask(&self, value: i64) {
        let (min, max) = (self.min.load(Relaxed), self.max.load(Relaxed));
        self.wanted.store(value.min(max).max(min), Relaxed);
        self.changes.fetch_add(1, Release);
        sys::wake(&self.changes);
    }

    /// Gives the place up.
    pub fn withdraw(&self) {
        self.class.store(0, Release);
        self.process.store(0, Release);
    }
}
