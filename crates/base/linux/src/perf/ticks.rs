//! A clock that ticks while one thread runs, and says where each tick met it.

use super::{
    ATTR_EXCLUDE_KERNEL, Attr, Kind, PERF_COUNT_SW_TASK_CLOCK, PERF_RECORD_SAMPLE, PERF_TYPE_SOFTWARE, RING_PAGES,
    explain, next_record, open_attr,
};
use crate::map::{Mapping, page_size};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

// From <linux/perf_event.h> and <asm/perf_regs.h>.
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_READ: u64 = 1 << 4;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const USE_CLOCKID: u64 = 1 << 25;
const MODE: u64 = 7;
const MODE_USER: u64 = 2;
const ABI_64: u64 = 2;
/// ax bx cx dx si di bp sp ip, and r8 to r15.
const REGISTERS: u64 = 0x00ff_01ff;
/// Where the kernel's list has the registers of DWARF's.
const DWARF: [u64; 17] = [0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 8];

/// What a tick met, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// CLOCK_MONOTONIC, ns.
    pub ns: u64,
    /// CPU time of the thread since the clock was opened, ns.
    pub ran_ns: u64,
    /// Whether the thread was in its own code. Else it was inside the kernel.
    pub own: bool,
    /// The registers the thread has in its own code, by DWARF's numbers, the last one the
    /// instruction pointer; of a thread inside the kernel those it came with. `None` for a program
    /// of 32 bits.
    pub registers: Option<[u64; 17]>,
}

/// An open clock; closed on drop. The thread is disturbed by the clock's interrupts alone.
#[derive(Debug)]
pub struct Ticks {
    fd: OwnedFd,
    ring: Mapping,
}

impl Ticks {
    /// Ticks once in `period_ns` that the thread runs. `kernel`: also while it is inside the
    /// kernel, which needs CAP_PERFMON, or `kernel.perf_event_paranoid` below 2.
    ///
    /// # Errors
    /// As [`Counter::open_thread`](super::Counter::open_thread); `EPERM` when too much memory of
    /// the user is locked by rings.
    pub fn open(tid: i32, period_ns: u64, kernel: bool) -> io::Result<Ticks> {
        let attr = Attr {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: PERF_COUNT_SW_TASK_CLOCK,
            sample_period: period_ns,
            sample_type: SAMPLE_TIME | SAMPLE_READ | SAMPLE_REGS_USER,
            flags: USE_CLOCKID | if kernel { 0 } else { ATTR_EXCLUDE_KERNEL },
            sample_regs_user: REGISTERS,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attr::default()
        };
        let fd = open_attr(&attr, tid, -1).map_err(|e| explain(e, Kind::TaskClock))?;
        let ring = Mapping::shared(fd.as_fd(), (1 + RING_PAGES) * page_size(), true, false)?;
        Ok(Ticks { fd, ring })
    }

    /// The next tick, if there was one. Never blocks. Ticks that come while the ring is full, after
    /// some 190, are lost.
    pub fn next_tick(&mut self) -> Option<Tick> {
        next_record(&self.ring, |header, word| {
            (header as u32 == PERF_RECORD_SAMPLE).then(|| Tick {
                ns: word(1),
                ran_ns: word(2),
                own: header >> 32 & MODE == MODE_USER,
                registers: (word(3) == ABI_64).then(|| DWARF.map(|i| word(4 + i))),
            })
        })
    }

    /// CPU time of the thread since the clock was opened, ns: exact while it does not run. `None`:
    /// it has exited.
    pub fn ran_ns(&self) -> Option<u64> {
        let mut value = 0u64;
        // SAFETY: the value has the eight bytes that are asked for.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut value).cast(), size_of::<u64>()) };
        (n == size_of::<u64>() as isize).then_some(value)
    }
}
