//! The memory that host and guests share: the layout of `executive/abi.h`.
//!
//! Guests can write any of it at any time, so it is read by volatile loads only, once, and every
//! value is checked.

use orbit_linux::map::Mapping;
use orbit_linux::{locks, memfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

pub(crate) const VERSION: u32 = 5;
/// From `hint_generation` to the end of `struct extension_memory`.
const HINTS_BYTES: usize = 64 + 32 * 8 + 32 * 128 * 8;
pub(crate) const MAX_CALLS: usize = 512;
pub(crate) const MAX_SLOTS: usize = 2048;
pub(crate) const RING_BYTES: usize = 65536;
pub(crate) const MAX_RULES: usize = 64;
pub(crate) const MAX_CONDITIONS: usize = 4;
pub(crate) const PATTERN_BYTES: usize = 128;
const STATS: usize = 32;

pub(crate) const OPTION_TRACE: u32 = 1;
pub(crate) const OPTION_LOSSY: u32 = 2;
pub(crate) const OPTION_NO_REWRITE: u32 = 4;
pub(crate) const OPTION_IO_URING: u32 = 8;
pub(crate) const OPTION_SAVE_ALL: u32 = 16;
pub(crate) const OPTION_VIRTUAL_TIME: u32 = 32;
pub(crate) const OPTION_OBJECT_KILL: u32 = 64;
pub(crate) const OPTION_ASK_KILL: u32 = 128;

const CHANNELS_BYTES: usize = 64 * 256;
pub(crate) const QUESTIONS: usize = 64;
pub(crate) const SHARE_BYTES: usize = 65536;
pub(crate) const OBJECT_LIMIT: usize = 0x10_0000;

/// What is captured of an argument; see `struct capture`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Capture {
    pub kind: u8,
    pub length: u8,
    pub size: u16,
}

/// What the executive knows of a call; see `struct call_description`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Description {
    pub arguments: [Capture; 6],
    pub roles: [u8; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Condition {
    pub argument: u8,
    pub kind: u8,
    pub negated: u8,
    pub pad: [u8; 5],
    pub low: u64,
    pub high: u64,
    pub pattern: [u8; PATTERN_BYTES],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub calls: [u64; MAX_CALLS / 64],
    pub condition_count: u32,
    pub action: u32,
    pub value: i64,
    pub skip: u64,
    pub times: u64,
    pub every: u64,
    pub chance: u32,
    pub target: u32,
    pub site: u64,
    pub matched: u64,
    pub applied: u64,
    pub conditions: [Condition; MAX_CONDITIONS],
    pub text: [u8; PATTERN_BYTES],
}

/// One thread of a guest and its ring. The guest writes all but `tail`, and `state` together with
/// the host.
#[repr(C)]
pub(crate) struct Slot {
    pub state: AtomicU32,
    pub tid: AtomicU32,
    pub pid: AtomicU32,
    pad: u32,
    pub head: AtomicU64,
    pub lost: AtomicU64,
    pad1: [u64; 4],
    pub tail: AtomicU64,
    pad2: [u64; 7],
}

impl Slot {
    /// The low half of `tail`, on which a thread sleeps whose ring is full.
    pub fn tail_word(&self) -> &AtomicU32 {
        // SAFETY: the first four bytes of a live, aligned u64, which is accessed atomically only;
        // the kernel compares the word, and nothing else accesses it at this width.
        unsafe { &*(&raw const self.tail).cast::<AtomicU32>() }
    }
}

pub(crate) const SLOT_FREE: u32 = 0;
pub(crate) const SLOT_USED: u32 = 1;
pub(crate) const SLOT_DONE: u32 = 2;

/// What a slot's state says: `SLOT_*`, and the number of its process.
pub(crate) fn split_state(state: u32) -> (u32, u32) {
    (state & 3, state >> 2)
}

/// Where the policy object's parts are; see `struct object_description`.
#[repr(C)]
pub(crate) struct ObjectDescription {
    pub bytes: u64,
    pub text_bytes: u64,
    pub policy: u64,
}

/// A question of a guest; see `struct question`. The guest writes all but `result` and `verdict`.
#[repr(C)]
pub(crate) struct RawQuestion {
    pub state: AtomicU32,
    pub tid: AtomicU32,
    pub pid: AtomicU32,
    pub rule: AtomicU32,
    pub number: AtomicU64,
    pub arguments: [AtomicU64; 6],
    pub site: AtomicU64,
    pub registers: [AtomicU64; 15],
    pad1: u64,
    pub result: AtomicU64,
    pub verdict: AtomicU32,
    pad: u32,
    path: [AtomicU64; 32],
}

impl RawQuestion {
    /// The bytes of the path, which the guest may change meanwhile.
    pub fn path(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.path.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
        bytes
    }
}

/// What the host wants of a thread, and its registers; see `struct inspection`.
#[repr(C)]
pub(crate) struct Inspection {
    pub command: AtomicU32,
    pub state: AtomicU32,
    pub busy: AtomicU32,
    pad: u32,
    pub registers: [AtomicU64; 18],
    pad1: [u64; 12],
}

#[repr(C)]
struct Extension {
    channels: [u8; CHANNELS_BYTES],
    questions: [RawQuestion; QUESTIONS],
    share: [AtomicU8; SHARE_BYTES],
    inspections: [Inspection; MAX_SLOTS],
    /// Only guests read and write them.
    hints: [u8; HINTS_BYTES],
}

#[repr(C)]
pub(crate) struct Shared {
    pub counts: [AtomicU64; MAX_CALLS],
    pub stats: [AtomicU64; STATS],
    pub version: u32,
    processes: u32,
    pub options: AtomicU32,
    pub threshold: u32,
    pub bell: AtomicU32,
    pub slot_limit: AtomicU32,
    pub first: AtomicU32,
    pub rule_count: u32,
    pub speed: u64,
    pub speed_per: u64,
    pub jump: i64,
    pub jump_after: u64,
    waited: u64,
    pub time_base: [u64; 12],
    pub object: ObjectDescription,
    pub ask_limit: u64,
    pub seed: u64,
    pub calls: [Description; MAX_CALLS],
    pub rules: [Rule; MAX_RULES],
    pub slots: [Slot; MAX_SLOTS],
}

const _: () = assert!(size_of::<Slot>() == 128 && size_of::<Description>() == 32);
const _: () = assert!(size_of::<Rule>() == 64 + 8 + 32 + 8 + 24 + MAX_CONDITIONS * 152 + PATTERN_BYTES);

const EXTENSION_OFFSET: usize = (size_of::<Shared>() + 4095) & !4095;
const OBJECT_OFFSET: usize = EXTENSION_OFFSET + ((size_of::<Extension>() + 4095) & !4095);
const COUNTS_OFFSET: usize = OBJECT_OFFSET + OBJECT_LIMIT;
/// Only where calls are traced.
const RINGS_OFFSET: usize = COUNTS_OFFSET + MAX_SLOTS * MAX_CALLS * 8;
const _: () = assert!(size_of::<RawQuestion>() == 480 && size_of::<Inspection>() == 256);

/// The memory of one session: a file without a name, of a sealed size, which guests inherit.
pub(crate) struct Memory {
    file: OwnedFd,
    mapping: Mapping,
}

impl Memory {
    /// Makes the memory; `fill` sets what guests only read, before any guest has it. `object` is
    /// the image of the policy object, at most `OBJECT_LIMIT` bytes. With `rings` threads can
    /// trace.
    pub fn create(object: &[u8], rings: bool, fill: impl FnOnce(&mut Shared)) -> io::Result<Memory> {
        assert!(object.len() <= OBJECT_LIMIT);
        let bytes = RINGS_OFFSET + if rings { MAX_SLOTS * RING_BYTES } else { 0 };
        let file = memfd::create("hijack-session", bytes, true)?;
        // A guest that makes it shorter would kill the host, and all others.
        memfd::seal_size(file.as_fd())?;
        // Released with this process, whatever PID namespace a guest is in that asks.
        locks::set(file.as_fd(), 0)?;
        let mapping = Mapping::shared(file.as_fd(), bytes, true, false)?;
        // SAFETY: the mapping has OBJECT_LIMIT bytes for the image there, and nothing else has
        // mapped the file yet.
        unsafe { mapping.as_ptr().add(OBJECT_OFFSET).copy_from_nonoverlapping(object.as_ptr(), object.len()) };
        // SAFETY: the mapping is zeroed, aligned to pages, larger than `Shared`, and nothing else
        // has mapped the file yet; zeroes are valid for every field.
        fill(unsafe { &mut *mapping.as_ptr().cast::<Shared>() });
        Ok(Memory { file, mapping })
    }

    /// Whether the process with this number of the session lives. It holds its lock while calls are
    /// traced.
    pub fn is_alive(&self, process: u32) -> bool {
        // What cannot be asked is taken for alive: its end comes with that of the others.
        locks::is_held(self.file(), process.into()).unwrap_or(true)
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Calls by number, of all threads that were and are.
    pub fn counts(&self) -> [u64; MAX_CALLS] {
        let limit = self.slot_limit();
        // SAFETY: the counters lie in the mapping, behind the policy object; they
        // are aligned, and guests write them by single stores.
        let slots: &[[AtomicU64; MAX_CALLS]] =
            unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(COUNTS_OFFSET).cast(), limit) };
        let all = || slots.iter().chain(std::iter::once(&self.shared().counts));
        std::array::from_fn(|nr| all().fold(0u64, |sum, counts| sum.wrapping_add(counts[nr].load(Ordering::Relaxed))))
    }

    pub fn stat(&self, which: usize) -> u64 {
        self.shared().stats[which].load(Ordering::Relaxed)
    }

    pub fn slot(&self, index: usize) -> &Slot {
        &self.shared().slots[index]
    }

    pub fn slot_limit(&self) -> usize {
        (self.shared().slot_limit.load(Ordering::Acquire) as usize).min(MAX_SLOTS)
    }

    pub fn bell(&self) -> &AtomicU32 {
        &self.shared().bell
    }

    /// How often rule `index` matched and acted.
    pub fn rule_counts(&self, index: usize) -> (u64, u64) {
        let rule = &raw const self.shared().rules[index];
        // SAFETY: the rule lies in the mapping; guests change the two words meanwhile, hence
        // volatile.
        unsafe { ((&raw const (*rule).matched).read_volatile(), (&raw const (*rule).applied).read_volatile()) }
    }

    /// Copies `to.len()` bytes that begin `at` bytes into the stream of a slot's ring.
    pub fn copy_ring(&self, slot: usize, at: u64, to: &mut [u8]) {
        assert!(slot < MAX_SLOTS && to.len() <= RING_BYTES && self.mapping.len() > RINGS_OFFSET);
        let within = (at % RING_BYTES as u64) as usize;
        let first = to.len().min(RING_BYTES - within);
        // SAFETY: the ring lies in the mapping, checked above; both parts lie in the ring. Guests
        // may write it meanwhile; bytes have no invalid values, and the caller checks them.
        unsafe {
            let ring = self.mapping.as_ptr().add(RINGS_OFFSET + slot * RING_BYTES).cast_const();
            std::ptr::copy_nonoverlapping(ring.add(within), to.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(ring, to.as_mut_ptr().add(first), to.len() - first);
        }
    }

    pub fn question(&self, index: usize) -> &RawQuestion {
        &self.extension().questions[index]
    }

    pub fn inspection(&self, slot: usize) -> &Inspection {
        &self.extension().inspections[slot]
    }

    /// The memory that policy objects share with the host.
    pub fn share(&self) -> &[AtomicU8] {
        &self.extension().share
    }

    fn extension(&self) -> &Extension {
        // SAFETY: the extension lies in the mapping, page-aligned, and all that is read of it are
        // atomics.
        unsafe { &*self.mapping.as_ptr().add(EXTENSION_OFFSET).cast::<Extension>() }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping lives as long as `self`, aligned and large enough. What
        // guests write is reached through atomics; plain fields are read by `rule_counts` only,
        // volatile.
        unsafe { &*self.mapping.as_ptr().cast::<Shared>() }
    }
}
