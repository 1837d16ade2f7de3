//! The tables shared with the kernel programs, as `bpf/rmk.h` declares them. Every field is an
//! atomic word here: the kernel writes while user space reads, and the other way round.

use orbit_rmk::Filter;
use std::sync::atomic::AtomicU64;

/// Subscriptions at a time: one bit each. Bit 63 marks the core's own processes.
pub(crate) const SUBS: usize = 63;
/// The bit of the core's own processes.
pub(crate) const OWN: u64 = 1 << 63;
/// CPUs that the tables have room for.
pub(crate) const MAX_CPUS: usize = Filter::MAX_CPUS;
/// Processes that can be listed at a time.
pub(crate) const LISTED: usize = Filter::MAX_PIDS;
/// Keys of a subscription's set.
pub(crate) const KEYS: usize = Filter::MAX_KEYS;

/// `struct sub`: one subscription's filter (written here) and its counters (`sent`, `lost` and
/// `unlisted` written by the kernel).
#[repr(C)]
pub(crate) struct Sub {
    pub keys: [AtomicU64; KEYS / 64],
    pub cpus: [AtomicU64; MAX_CPUS / 64],
    pub classes: AtomicU64,
    pub min_ns: AtomicU64,
    pub every: AtomicU64,
    pub exact: AtomicU64,
    pub quota: AtomicU64,
    pub taken: AtomicU64,
    pub sent: AtomicU64,
    pub lost: AtomicU64,
    pub unlisted: AtomicU64,
    pub spare: [AtomicU64; 3],
}

/// `struct seen`: what passed a subscription's filter on one CPU; row `cpu * 64 + subscription`.
#[repr(C)]
pub(crate) struct Seen {
    pub passed: AtomicU64,
    pub due: AtomicU64,
}

/// `struct table`: what each module subscribed to.
#[repr(C)]
pub(crate) struct Table {
    pub active: [AtomicU64; 32],
    pub everyone: AtomicU64,
    pub asleep: AtomicU64,
    pub spare: [AtomicU64; 30],
}

/// `struct cpu`: what is known of one CPU; written by the kernel.
#[repr(C)]
pub(crate) struct Cpu {
    pub last_switch: AtomicU64,
    pub switches: AtomicU64,
    pub last_tick: AtomicU64,
    pub ticks: AtomicU64,
    pub longest: AtomicU64,
    pub current: AtomicU64,
    pub irq_start: AtomicU64,
    pub soft_start: AtomicU64,
}

/// `struct listed`: subscriptions that a process is listed for, and those that its children
/// inherit.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Listed {
    pub mask: u64,
    pub follow: u64,
}

// SAFETY: two integers without padding: every bit pattern is a value, and no byte is uninitialised.
unsafe impl aya::Pod for Listed {}

const _: () =
    assert!(size_of::<Sub>() == 192 && size_of::<Table>() == 512 && size_of::<Cpu>() == 64 && size_of::<Seen>() == 16);
