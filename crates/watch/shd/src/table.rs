//! The table of CPUs that the kernel half and user space share: its layout, and a mapping of it.
//!
//! A change here is a change in `bpf/shd.bpf.c`, which checks the size. Fields are atomics: the
//! kernel half writes them while they are read. Those of the alarm are valid once `alarm` has the
//! value of `accused`.

use crate::Error;
use orbit_linux::map::Mapping;
use std::{
    os::fd::BorrowedFd,
    sync::atomic::{AtomicU32, AtomicU64},
};

/// CPUs there is room for.
pub const MAX_CPUS: usize = 512;
/// CPUs that one CPU judges beside itself.
pub const NEIGHBOURS: usize = 8;
const NOBODY: u32 = u32::MAX;
const WINDOW: usize = 64;

/// What is known of one CPU.
#[repr(C)]
pub struct Cpu {
    /// When it last made progress (monotonic nanoseconds).
    pub progress: AtomicU64,
    /// Context switches.
    pub switches: AtomicU64,
    last_tick: AtomicU64,
    /// Its timer's interrupts.
    pub ticks: AtomicU64,
    last_count: AtomicU64,
    longest: AtomicU64,
    /// The check value, in ticks.
    pub check: AtomicU64,
    /// 0: not watched, or no longer.
    pub watched: AtomicU64,
    window: [AtomicU64; WINDOW],
    neighbours: [AtomicU32; NEIGHBOURS],
    accused: AtomicU64,
    pub alarm_time: AtomicU64,
    pub alarm_by: AtomicU64,
    pub alarm_check: AtomicU64,
    pub alarm_tick: AtomicU64,
    pub alarm_count: AtomicU64,
    /// `progress` for which the last alarm was raised.
    pub alarm: AtomicU64,
    counted_at: AtomicU64,
    counts: AtomicU64,
    spare: [AtomicU64; 3],
}
const _: () = assert!(size_of::<Cpu>() == 704);

/// The table, mapped.
pub struct Table {
    mapping: Mapping,
}

const BYTES: usize = (MAX_CPUS * size_of::<Cpu>()).next_multiple_of(4096);

impl Table {
    pub fn new(map: BorrowedFd) -> Result<Table, Error> {
        let mapping =
            Mapping::shared(map, BYTES, true, true).map_err(|why| Error::of("mapping the table of CPUs", &why))?;
        Ok(Table { mapping })
    }

    /// CPU `n`, below [`MAX_CPUS`].
    pub fn cpu(&self, n: usize) -> &Cpu {
        assert!(n < MAX_CPUS, "CPU {n} is outside the table of {MAX_CPUS}");
        // SAFETY: row `n` lies inside the mapping, which exists as long as `self`, and every value
        // is a valid atomic.
        unsafe { &*self.mapping.as_ptr().cast::<Cpu>().add(n) }
    }

    /// Has each of these CPUs judged by the [`NEIGHBOURS`] before it, in a ring. Before the
    /// programs are attached.
    pub fn watch(&self, cpus: &[usize]) {
        use std::sync::atomic::Ordering::Relaxed;
        for (place, &n) in cpus.iter().enumerate() {
            let others = cpus.iter().cycle().skip(place + 1).take(NEIGHBOURS.min(cpus.len() - 1));
            let mut ids = others.map(|&id| id as u32);
            for slot in &self.cpu(n).neighbours {
                slot.store(ids.next().unwrap_or(NOBODY), Relaxed);
            }
            self.cpu(n).watched.store(1, Relaxed);
        }
    }
}
