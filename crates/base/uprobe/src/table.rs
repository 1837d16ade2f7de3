//! The kernel half's tables, as user space reads them.
//!
//! A change here is a change in `bpf/uprobe.bpf.c`, which checks the size of [`Record`].

/// Functions in processes that can be probed at a time.
pub const SLOTS: usize = 256;
/// Exits of a function that are distinguished.
pub const EXITS: usize = 8;
/// Threads, counted once for each function they enter, of which there is a record at a time.
pub const THREADS: usize = 8192;

/// Which record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) tid: u32,
    pub(crate) slot: u32,
}

/// Where an activation of a slot's function was to return to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    pub(crate) back: u64,
    pub(crate) slot: u64,
}

/// What one thread did in one function. It is written while it is read, so fields may be of two
/// moments.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Times entered, nested activations too.
    pub entries: u64,
    /// Stack pointer at the entry of the open activation; 0 if none is open.
    pub sp: u64,
    /// CPU time of the thread when it entered, ns; up to a tick of the kernel (10 ms at most) too
    /// little.
    pub run: u64,
    /// The monotonic clock at that moment, ns.
    pub time: u64,
    /// Times the thread had been taken off a CPU by then.
    pub switches: u64,
    /// The return address of that activation.
    pub back: u64,
    /// `entries` by then, that one too: if it is the same now, the thread has not entered since. It
    /// is written last.
    pub opened: u64,
    /// Times left, by exit; outermost activations only.
    pub exits: [u64; EXITS],
    /// CPU time of those executions, ns.
    pub used: [u64; EXITS],
}
const _: () = assert!(size_of::<Record>() == 184);

/// How often the probes of one slot were hit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Entries of the function.
    pub entries: u64,
    /// Exits, as they were seen at a probe of their own.
    pub exits: u64,
    /// Times that a jump on the way to an exit continued in the function.
    pub passes: u64,
    /// Of exits, those at instructions that the kernel does not run itself.
    pub stepped: u64,
    /// Entries of threads of which there is no record, for there were [`THREADS`] already.
    pub lost: u64,
}

impl Hits {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.entries.saturating_add(self.exits).saturating_add(self.passes)
    }

    /// These and those.
    pub(crate) fn and(self, other: Hits) -> Hits {
        let sum = |a: u64, b: u64| a.saturating_add(b);
        Hits {
            entries: sum(self.entries, other.entries),
            exits: sum(self.exits, other.exits),
            passes: sum(self.passes, other.passes),
            stepped: sum(self.stepped, other.stepped),
            lost: sum(self.lost, other.lost),
        }
    }
}

// SAFETY: integers without padding: every bit pattern is a value.
unsafe impl aya::Pod for Key {}
// SAFETY: as above.
unsafe impl aya::Pod for Caller {}
// SAFETY: as above.
unsafe impl aya::Pod for Record {}
// SAFETY: as above.
unsafe impl aya::Pod for Hits {}
