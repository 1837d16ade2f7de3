//! What modules ask of pins: [`Command`], and what pins answer: [`Reply`]. Platform-free: nothing
//! here names a kernel facility.
//!
//! Ids that a reply gives (counters, breakpoints, watches) belong to the module that asked; another
//! module cannot use them, and they end when the module releases the pin.

use serde::{Deserialize, Serialize};

/// Where a counter counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// One thread, by its tid.
    Thread {
        /// The thread.
        tid: u32,
    },
    /// Everything on one CPU.
    Cpu {
        /// The CPU.
        cpu: u32,
    },
}

/// What a counter counts. What the processor does not offer is rejected, except instructions: those
/// become CPU time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// Instructions retired; where there is no counter for them, nanoseconds of CPU time, and the
    /// reply says so.
    Instructions,
    /// Processor cycles.
    Cycles,
    /// Accesses to the cache.
    CacheReferences,
    /// Accesses that missed the cache.
    CacheMisses,
    /// Loads that missed the data TLB.
    TlbMisses,
    /// Nanoseconds of CPU time; always there.
    CpuTime,
    /// Page faults; always there.
    PageFaults,
    /// Context switches; always there.
    Switches,
}

/// Unit of a counter's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Things counted.
    Count,
    /// Nanoseconds of CPU time, in place of what was asked for.
    Nanoseconds,
}

/// Where an overflow is delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// As an [`crate::Kind::Overflow`] event.
    Event,
    /// As a signal to a process, besides the event count.
    Signal {
        /// The process.
        pid: u32,
        /// The signal.
        signal: u32,
    },
}

/// What a breakpoint waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// The instruction at the address is about to run.
    Execute,
    /// The bytes are written.
    Write,
    /// The bytes are read or written.
    ReadWrite,
}

/// What is done with an intercepted signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Delivered, and reported.
    Pass,
    /// Never delivered, and reported.
    Drop,
    /// Held back with the thread stopped until [`Command::SignalDecide`].
    Hold,
    /// Another signal is delivered in its place.
    Replace {
        /// That signal.
        signal: u32,
    },
}

/// What is done with an intercepted system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallVerdict {
    /// Made, and reported.
    Pass,
    /// Not made: it fails with this error. x86-64 only.
    Refuse {
        /// The error's number, 1 to 511.
        errno: u32,
    },
    /// Held back with the thread stopped until [`Command::CallDecide`].
    Hold,
}

/// Advice to the system about a range of memory, or its protection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageProperty {
    /// Not needed soon: first to be reclaimed.
    Cold,
    /// Reclaim now (to swap, if there is some).
    PageOut,
    /// Needed soon: read it in.
    WillNeed,
    /// Readable only: a write raises a page fault exception in the program.
    ReadOnly,
    /// Readable and writable.
    ReadWrite,
    /// Neither.
    NoAccess,
}

/// One operation of a pin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// P_PMC: opens a stopped counter at 0. `reach`: raise [`crate::Kind::CounterReached`] each
    /// time so many were counted; 0: never. Gives [`Reply::Counter`]. A module has 256 at a time.
    CounterOpen {
        /// Where.
        target: Target,
        /// What.
        measure: Measure,
        /// When to raise an event.
        reach: u64,
    },
    /// P_PMC: counts from now on.
    CounterStart {
        /// The counter.
        id: u64,
    },
    /// P_PMC: stops counting, keeps its value.
    CounterStop {
        /// The counter.
        id: u64,
    },
    /// P_PMC: gives [`Reply::Counter`].
    CounterRead {
        /// The counter.
        id: u64,
    },
    /// P_PMC: gives the counter this value.
    CounterWrite {
        /// The counter.
        id: u64,
        /// Its value from now on.
        value: u64,
    },
    /// P_PMC: forgets the counter.
    CounterClose {
        /// The counter.
        id: u64,
    },
    /// P_APIC: from now on a counter of the target overflows every `period` and is delivered so.
    /// Gives [`Reply::Counter`] (its id and unit).
    OverflowArm {
        /// Where.
        target: Target,
        /// What is counted.
        measure: Measure,
        /// Count between two overflows.
        period: u64,
        /// Where the overflow goes.
        delivery: Delivery,
    },
    /// P_APIC: disarms it.
    OverflowDisarm {
        /// The armed overflow.
        id: u64,
    },
    /// P_DBR: sets a breakpoint in every thread that the process has now. Gives [`Reply::Id`].
    BreakpointSet {
        /// The process.
        pid: u32,
        /// Address in it.
        address: u64,
        /// 1, 2, 4 or 8 bytes; ignored for `Execute`.
        length: u32,
        /// What it waits for.
        access: Access,
    },
    /// P_DBR: removes it.
    BreakpointClear {
        /// The breakpoint.
        id: u64,
    },
    /// P_INTR: gives [`Reply::Interrupts`], counts since boot.
    InterruptCounts,
    /// P_SIG: from now on these signals to the process are intercepted. The process must have no
    /// debugger, and has one meanwhile.
    SignalIntercept {
        /// The process.
        pid: u32,
        /// The signals; empty: all.
        signals: Vec<u32>,
        /// What is done with them.
        verdict: Verdict,
    },
    /// P_SIG: decides about a signal held back, by the ticket of its
    /// [`crate::Kind::SignalIntercepted`] event.
    SignalDecide {
        /// The ticket.
        ticket: u64,
        /// `Hold` is rejected.
        verdict: Verdict,
    },
    /// P_SIG: ends the interception; what is held is delivered.
    SignalRelease {
        /// The process.
        pid: u32,
    },
    /// P_SIG: sends a signal.
    SignalSend {
        /// The process.
        pid: u32,
        /// The signal.
        signal: u32,
    },
    /// P_MEM: gives [`Reply::Bytes`]; fewer than asked for where a page cannot be read.
    MemoryRead {
        /// The process.
        pid: u32,
        /// Address in it.
        address: u64,
        /// Bytes, up to 64 MiB.
        length: u64,
    },
    /// P_MEM: writes all the bytes or fails.
    MemoryWrite {
        /// The process.
        pid: u32,
        /// Address in it.
        address: u64,
        /// What to write.
        bytes: Vec<u8>,
    },
    /// P_MEM: gives [`Reply::Regions`].
    MemoryMap {
        /// The process.
        pid: u32,
    },
    /// P_MEM: from now on written pages of the range are found. Gives [`Reply::Watch`].
    PagesWatch {
        /// The process.
        pid: u32,
        /// First byte; on a page boundary.
        start: u64,
        /// First byte after the range; on a page boundary.
        end: u64,
    },
    /// P_MEM: gives the [`Reply::Ranges`] written since the last time, and raises
    /// [`crate::Kind::PagesWritten`] for each.
    PagesCollect {
        /// The watch.
        id: u64,
    },
    /// P_MEM: ends the watch.
    PagesForget {
        /// The watch.
        id: u64,
    },
    /// P_MEM: sets a property of the pages.
    PagesSet {
        /// The process.
        pid: u32,
        /// First byte; on a page boundary.
        start: u64,
        /// Bytes; a multiple of the page size.
        length: u64,
        /// The property.
        property: PageProperty,
    },
    /// P_SCHL: gives [`Reply::Cpus`].
    CpuStates,
    /// P_SCHL: gives [`Reply::Threads`].
    ThreadTimes {
        /// The process.
        pid: u32,
    },
    /// P_PERI: from now on a thread of real-time priority wakes on every CPU each interval, so that
    /// a CPU that works makes context switches. One for all modules; the shortest interval asked
    /// for holds.
    HeartbeatStart {
        /// Nanoseconds, 1 ms to 10 s.
        interval_ns: u64,
    },
    /// P_PERI: this module needs it no more.
    HeartbeatStop,
    /// P_NET: gives [`Reply::Sockets`].
    Sockets {
        /// The process.
        pid: u32,
    },
    /// P_NET: gives [`Reply::Holders`]: processes that have the socket of a TCP connection open.
    SocketHolders {
        /// Its own address and port, as [`Socket::local`] has them.
        local: String,
        /// The other end's.
        peer: String,
    },
    /// P_SYSC: gives [`Reply::Calls`]: the system call that each thread is in.
    CallsNow {
        /// The process.
        pid: u32,
    },
    /// P_FILE: gives [`Reply::Files`].
    OpenFiles {
        /// The process.
        pid: u32,
    },
    /// P_FILE: reads through the process' own descriptor; its offset stays. Gives [`Reply::Bytes`].
    FileRead {
        /// The process.
        pid: u32,
        /// Its descriptor.
        fd: u32,
        /// Byte in the file.
        offset: u64,
        /// Bytes, up to 64 MiB.
        length: u64,
    },
    /// P_FILE: writes through the process' own descriptor; its offset stays. Gives [`Reply::Id`],
    /// the number of bytes.
    FileWrite {
        /// The process.
        pid: u32,
        /// Its descriptor.
        fd: u32,
        /// Byte in the file.
        offset: u64,
        /// What to write.
        bytes: Vec<u8>,
    },
    /// P_FILE: sets the offset of the process' descriptor. Gives [`Reply::Id`], the new offset.
    FileSeek {
        /// The process.
        pid: u32,
        /// Its descriptor.
        fd: u32,
        /// The new offset.
        offset: u64,
    },
    /// P_IPC: gives [`Reply::Channels`].
    Channels {
        /// The process.
        pid: u32,
    },
    /// P_IPC: puts bytes into a pipe or UNIX stream of the process, through its own descriptor, as
    /// far as there is room. Gives [`Reply::Id`], the number of bytes.
    ChannelWrite {
        /// The process.
        pid: u32,
        /// Its descriptor, open for writing.
        fd: u32,
        /// What to write.
        bytes: Vec<u8>,
    },
    /// P_SYSC, P_FILE, P_NET, P_IPC: from now on these calls of the process are intercepted, before
    /// they are made; in place of those that the module named to this pin before. The process must
    /// have no debugger, and has one meanwhile.
    CallIntercept {
        /// The process.
        pid: u32,
        /// Their numbers; empty: all that belong to the pin.
        calls: Vec<u32>,
        /// What is done with them.
        verdict: CallVerdict,
    },
    /// The same pins: decides about a call held back, by the ticket of its
    /// [`crate::Kind::CallIntercepted`] event.
    CallDecide {
        /// The ticket.
        ticket: u64,
        /// `Hold` is rejected.
        verdict: CallVerdict,
    },
    /// The same pins: this one intercepts nothing there any more; what is held is made.
    CallRelease {
        /// The process.
        pid: u32,
    },
    /// P_SIG: from now on a thread of the process that a signal would kill is held in its place,
    /// and [`crate::Kind::SignalFatal`] is raised. The process needs no debugger and stays
    /// untraced. What it handles itself is left to it. Until all modules that asked for it have
    /// released the pin.
    FatalHold {
        /// The process.
        pid: u32,
    },
    /// P_MEM: takes a checkpoint of the whole process: written pages, mappings, threads, signal
    /// actions, timers, descriptors and offsets of files, all in one stop. Gives
    /// [`Reply::Checkpoint`]. Checkpoints of a process are for all modules, until the last that
    /// took one has released the pin.
    CheckpointTake {
        /// The process.
        pid: u32,
        /// How many are kept, 1 to 16, spaced by powers of two; the first command of a process
        /// holds.
        generations: u32,
        /// Nanoseconds from one to the next, for the spacing.
        interval_ns: u64,
    },
    /// P_MEM: gives [`Reply::Checkpoints`].
    CheckpointList {
        /// The process.
        pid: u32,
    },
    /// P_MEM: puts the process back to a checkpoint and lets it run from there, also the thread
    /// that is held at a fatal signal. Newer checkpoints are forgotten. Gives [`Reply::Restored`].
    CheckpointRestore {
        /// The process.
        pid: u32,
        /// Which: 0 is the newest.
        nth: u32,
    },
}

/// What is known of one CPU since the pin was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuState {
    /// The CPU.
    pub cpu: u32,
    /// Context switches.
    pub switches: u64,
    /// Time of the last one (`CLOCK_MONOTONIC`, ns; 0: none yet).
    pub last_switch: u64,
    /// Longest time between two, in ns.
    pub longest: u64,
    /// Ticks of P_APIC; 0 while no module asked for them.
    pub ticks: u64,
    /// Time of the last tick.
    pub last_tick: u64,
    /// Process that runs there.
    pub pid: u32,
    /// Thread that runs there.
    pub tid: u32,
}

/// How a thread is scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTime {
    /// The thread.
    pub tid: u32,
    /// State, as in /proc (`R` running, `S` asleep, `D` in the kernel, `T` stopped, `Z` ended).
    pub state: u8,
    /// Nanoseconds on a CPU.
    pub ran_ns: u64,
    /// Nanoseconds ready and waiting for one.
    pub waited_ns: u64,
    /// Times it was put on a CPU.
    pub slices: u64,
}

/// A part of a process' address space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
    /// Bits: 1 readable, 2 writable, 4 executable, 8 shared.
    pub access: u32,
    /// File or name; empty for anonymous memory.
    pub name: String,
}

/// A range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
}

/// An open file of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Descriptor.
    pub fd: u32,
    /// Where it leads.
    pub path: String,
    /// Its offset.
    pub offset: u64,
    /// Flags of open(2).
    pub flags: u32,
}

/// A socket of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// Descriptor.
    pub fd: u32,
    /// "tcp", "tcp6", "udp", "udp6", "unix", or "other".
    pub family: String,
    /// Own address.
    pub local: String,
    /// The peer's address; empty: none.
    pub peer: String,
    /// Bytes that arrived and were not read.
    pub unread: u64,
    /// Bytes written that the peer has not acknowledged.
    pub unsent: u64,
    /// True for a socket that accepts connections.
    pub listening: bool,
}

/// A process that has a socket open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// Its name, as in /proc.
    pub name: String,
    /// Its descriptor.
    pub fd: u32,
    /// Bytes that arrived and were not read.
    pub unread: u64,
}

/// A pipe, UNIX socket, event counter, message queue or shared memory of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// Descriptor; `u32::MAX` for System V objects, which have none.
    pub fd: u32,
    /// "pipe", "unix", "eventfd", "mqueue", "sysv-shm", "sysv-msg" or "sysv-sem".
    pub kind: String,
    /// Its identity: equal for both ends of a pipe and for all users of an object.
    pub identity: u64,
    /// Bytes waiting in it (pipes, sockets, queues).
    pub waiting: u64,
    /// True if this descriptor can write to it.
    pub writable: bool,
}

/// The system call that a thread is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallNow {
    /// The thread.
    pub tid: u32,
    /// Number of the call; -1: in the program; -2: running, not known.
    pub number: i64,
    /// Its arguments.
    pub arguments: Vec<u64>,
}

/// How often an interrupt came, on all CPUs together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptCount {
    /// Its number or short name ("24", "LOC", "TIMER").
    pub name: String,
    /// Hard (false) or soft (true).
    pub soft: bool,
    /// Times since boot.
    pub count: u64,
}

/// What a pin answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// A number: see the command.
    Id {
        /// The number.
        id: u64,
    },
    /// A counter.
    Counter {
        /// Its id.
        id: u64,
        /// Its value.
        value: u64,
        /// The value's unit.
        unit: Unit,
    },
    /// Bytes.
    Bytes {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// CPUs.
    Cpus {
        /// One each.
        cpus: Vec<CpuState>,
    },
    /// Threads.
    Threads {
        /// One each.
        threads: Vec<ThreadTime>,
    },
    /// An address space.
    Regions {
        /// In the order of addresses.
        regions: Vec<Region>,
    },
    /// Ranges of addresses.
    Ranges {
        /// In the order of addresses.
        ranges: Vec<Range>,
    },
    /// A watch of pages, and how it finds them.
    Watch {
        /// Its id.
        id: u64,
        /// "tracked" (the program registered the range), "soft-dirty" or "compared".
        method: String,
    },
    /// Files.
    Files {
        /// One each.
        files: Vec<OpenFile>,
    },
    /// Sockets.
    Sockets {
        /// One each.
        sockets: Vec<Socket>,
    },
    /// Processes that have a socket open.
    Holders {
        /// One each, at most 64.
        holders: Vec<Holder>,
    },
    /// Channels.
    Channels {
        /// One each.
        channels: Vec<Channel>,
    },
    /// System calls.
    Calls {
        /// One for each thread.
        calls: Vec<CallNow>,
    },
    /// Interrupts.
    Interrupts {
        /// One each.
        counts: Vec<InterruptCount>,
    },
    /// A checkpoint was taken.
    Checkpoint {
        /// Pages copied.
        pages: u64,
        /// Nanoseconds that the process stood still.
        stopped_ns: u64,
        /// Bytes of pages that all checkpoints of the process hold.
        held: u64,
    },
    /// Checkpoints.
    Checkpoints {
        /// Nanoseconds since each was taken, newest first.
        ages_ns: Vec<u64>,
    },
    /// A process was put back.
    Restored {
        /// Pages written back.
        pages: u64,
        /// Nanoseconds that the process stood still.
        stopped_ns: u64,
        /// What could not be put back, a sentence each.
        left: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn a_command_is_equal_after_encoding_and_decoding() {
        let command =
            Command::CounterOpen { target: Target::Thread { tid: 7 }, measure: Measure::CacheMisses, reach: 9 };
        let mut bytes = encode(&command);
        assert_eq!(decode(&bytes), Some(command));
        bytes[0] = 200;
        assert_eq!(decode::<Command>(&bytes), None);
    }
}
