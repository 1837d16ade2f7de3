//! What modules ask of pins: [`Command`], and what pins answer: [`Reply`]. Platform-free: nothing here names a kernel facility.
//!
//! Ids that a reply gives (counters, breakpoints, watches) belong to the module that asked; another module cannot use them,
//! and they end when the module releases the pin.

use crate::wire::{wire_enum, wire_struct};

wire_enum! {
    /// Where a counter counts.
    Target {
        /// One thread, by its tid.
        0 Thread {
            /// The thread.
            tid: u32,
        }
        /// Everything on one CPU.
        1 Cpu {
            /// The CPU.
            cpu: u32,
        }
    }
}

wire_enum! {
    /// What a counter counts. What the processor does not offer is rejected, except instructions: those become CPU time.
    Measure {
        /// Instructions retired; where there is no counter for them, nanoseconds of CPU time, and the reply says so.
        0 Instructions {}
        /// Processor cycles.
        1 Cycles {}
        /// Accesses to the cache.
        2 CacheReferences {}
        /// Accesses that missed the cache.
        3 CacheMisses {}
        /// Loads that missed the data TLB.
        4 TlbMisses {}
        /// Nanoseconds of CPU time; always there.
        5 CpuTime {}
        /// Page faults; always there.
        6 PageFaults {}
        /// Context switches; always there.
        7 Switches {}
    }
}

wire_enum! {
    /// Unit of a counter's value.
    Unit {
        /// Things counted.
        0 Count {}
        /// Nanoseconds of CPU time, in place of what was asked for.
        1 Nanoseconds {}
    }
}

wire_enum! {
    /// Where an overflow is delivered.
    Delivery {
        /// As an [`crate::Kind::Overflow`] event.
        0 Event {}
        /// As a signal to a process, besides the event count.
        1 Signal {
            /// The process.
            pid: u32,
            /// The signal.
            signal: u32,
        }
    }
}

wire_enum! {
    /// What a breakpoint waits for.
    Access {
        /// The instruction at the address is about to run.
        0 Execute {}
        /// The bytes are written.
        1 Write {}
        /// The bytes are read or written.
        2 ReadWrite {}
    }
}

wire_enum! {
    /// What is done with an intercepted signal.
    Verdict {
        /// Delivered, and reported.
        0 Pass {}
        /// Never delivered, and reported.
        1 Drop {}
        /// Held back with the thread stopped until [`Command::SignalDecide`].
        2 Hold {}
        /// Another signal is delivered in its place.
        3 Replace {
            /// That signal.
            signal: u32,
        }
    }
}

wire_enum! {
    /// What is done with an intercepted system call.
    CallVerdict {
        /// Made, and reported.
        0 Pass {}
        /// Not made: it fails with this error. x86-64 only.
        1 Refuse {
            /// The error's number, 1 to 511.
            errno: u32,
        }
        /// Held back with the thread stopped until [`Command::CallDecide`].
        2 Hold {}
    }
}

wire_enum! {
    /// Advice to the system about a range of memory, or its protection.
    PageProperty {
        /// Not needed soon: first to be reclaimed.
        0 Cold {}
        /// Reclaim now (to swap, if there is some).
        1 PageOut {}
        /// Needed soon: read it in.
        2 WillNeed {}
        /// Readable only: a write raises a page fault exception in the program.
        3 ReadOnly {}
        /// Readable and writable.
        4 ReadWrite {}
        /// Neither.
        5 NoAccess {}
    }
}

wire_enum! {
    /// One operation of a pin.
    Command {
        /// P_PMC: opens a stopped counter at 0. `reach`: raise [`crate::Kind::CounterReached`] each time so many were counted; 0: never. Gives
        /// [`Reply::Counter`]. A module has 256 at a time.
        0 CounterOpen {
            /// Where.
            target: Target,
            /// What.
            measure: Measure,
            /// When to raise an event.
            reach: u64,
        }
        /// P_PMC: counts from now on.
        1 CounterStart {
            /// The counter.
            id: u64,
        }
        /// P_PMC: stops counting, keeps its value.
        2 CounterStop {
            /// The counter.
            id: u64,
        }
        /// P_PMC: gives [`Reply::Counter`].
        3 CounterRead {
            /// The counter.
            id: u64,
        }
        /// P_PMC: gives the counter this value.
        4 CounterWrite {
            /// The counter.
            id: u64,
            /// Its value from now on.
            value: u64,
        }
        /// P_PMC: forgets the counter.
        5 CounterClose {
            /// The counter.
            id: u64,
        }
        /// P_APIC: from now on a counter of the target overflows every `period` and is delivered so. Gives [`Reply::Counter`] (its id and unit).
        6 OverflowArm {
            /// Where.
            target: Target,
            /// What is counted.
            measure: Measure,
            /// Count between two overflows.
            period: u64,
            /// Where the overflow goes.
            delivery: Delivery,
        }
        /// P_APIC: disarms it.
        7 OverflowDisarm {
            /// The armed overflow.
            id: u64,
        }
        /// P_DBR: sets a breakpoint in every thread that the process has now. Gives [`Reply::Id`].
        8 BreakpointSet {
            /// The process.
            pid: u32,
            /// Address in it.
            address: u64,
            /// 1, 2, 4 or 8 bytes; ignored for `Execute`.
            length: u32,
            /// What it waits for.
            access: Access,
        }
        /// P_DBR: removes it.
        9 BreakpointClear {
            /// The breakpoint.
            id: u64,
        }
        /// P_INTR: gives [`Reply::Interrupts`], counts since boot.
        10 InterruptCounts {}
        /// P_SIG: from now on these signals to the process are intercepted. The process must have no debugger, and has one meanwhile.
        11 SignalIntercept {
            /// The process.
            pid: u32,
            /// The signals; empty: all.
            signals: Vec<u32>,
            /// What is done with them.
            verdict: Verdict,
        }
        /// P_SIG: decides about a signal held back, by the ticket of its [`crate::Kind::SignalIntercepted`] event.
        12 SignalDecide {
            /// The ticket.
            ticket: u64,
            /// `Hold` is rejected.
            verdict: Verdict,
        }
        /// P_SIG: ends the interception; what is held is delivered.
        13 SignalRelease {
            /// The process.
            pid: u32,
        }
        /// P_SIG: sends a signal.
        14 SignalSend {
            /// The process.
            pid: u32,
            /// The signal.
            signal: u32,
        }
        /// P_MEM: gives [`Reply::Bytes`]; fewer than asked for where a page cannot be read.
        15 MemoryRead {
            /// The process.
            pid: u32,
            /// Address in it.
            address: u64,
            /// Bytes, up to 64 MiB.
            length: u64,
        }
        /// P_MEM: writes all the bytes or fails.
        16 MemoryWrite {
            /// The process.
            pid: u32,
            /// Address in it.
            address: u64,
            /// What to write.
            bytes: Vec<u8>,
        }
        /// P_MEM: gives [`Reply::Regions`].
        17 MemoryMap {
            /// The process.
            pid: u32,
        }
        /// P_MEM: from now on written pages of the range are found. Gives [`Reply::Watch`].
        18 PagesWatch {
            /// The process.
            pid: u32,
            /// First byte; on a page boundary.
            start: u64,
            /// First byte after the range; on a page boundary.
            end: u64,
        }
        /// P_MEM: gives the [`Reply::Ranges`] written since the last time, and raises [`crate::Kind::PagesWritten`] for each.
        19 PagesCollect {
            /// The watch.
            id: u64,
        }
        /// P_MEM: ends the watch.
        20 PagesForget {
            /// The watch.
            id: u64,
        }
        /// P_MEM: sets a property of the pages.
        21 PagesSet {
            /// The process.
            pid: u32,
            /// First byte; on a page boundary.
            start: u64,
            /// Bytes; a multiple of the page size.
            length: u64,
            /// The property.
            property: PageProperty,
        }
        /// P_SCHL: gives [`Reply::Cpus`].
        22 CpuStates {}
        /// P_SCHL: gives [`Reply::Threads`].
        23 ThreadTimes {
            /// The process.
            pid: u32,
        }
        /// P_PERI: from now on a thread of real-time priority wakes on every CPU each interval, so that a CPU that works makes context
        /// switches. One for all modules; the shortest interval asked for holds.
        24 HeartbeatStart {
            /// Nanoseconds, 1 ms to 10 s.
            interval_ns: u64,
        }
        /// P_PERI: this module needs it no more.
        25 HeartbeatStop {}
        /// P_NET: gives [`Reply::Sockets`].
        26 Sockets {
            /// The process.
            pid: u32,
        }
        /// P_SYSC: gives [`Reply::Calls`]: the system call that each thread is in.
        27 CallsNow {
            /// The process.
            pid: u32,
        }
        /// P_FILE: gives [`Reply::Files`].
        28 OpenFiles {
            /// The process.
            pid: u32,
        }
        /// P_FILE: reads through the process' own descriptor; its offset stays. Gives [`Reply::Bytes`].
        29 FileRead {
            /// The process.
            pid: u32,
            /// Its descriptor.
            fd: u32,
            /// Byte in the file.
            offset: u64,
            /// Bytes, up to 64 MiB.
            length: u64,
        }
        /// P_FILE: writes through the process' own descriptor; its offset stays. Gives [`Reply::Id`], the number of bytes.
        30 FileWrite {
            /// The process.
            pid: u32,
            /// Its descriptor.
            fd: u32,
            /// Byte in the file.
            offset: u64,
            /// What to write.
            bytes: Vec<u8>,
        }
        /// P_FILE: sets the offset of the process' descriptor. Gives [`Reply::Id`], the new offset.
        31 FileSeek {
            /// The process.
            pid: u32,
            /// Its descriptor.
            fd: u32,
            /// The new offset.
            offset: u64,
        }
        /// P_IPC: gives [`Reply::Channels`].
        32 Channels {
            /// The process.
            pid: u32,
        }
        /// P_IPC: puts bytes into a pipe or UNIX stream of the process, through its own descriptor, as far as there is room. Gives [`Reply::Id`], the number of bytes.
        33 ChannelWrite {
            /// The process.
            pid: u32,
            /// Its descriptor, open for writing.
            fd: u32,
            /// What to write.
            bytes: Vec<u8>,
        }
        /// P_SYSC, P_FILE, P_NET, P_IPC: from now on these calls of the process are intercepted, before they are made; in place of those that the
        /// module named to this pin before. The process must have no debugger, and has one meanwhile.
        34 CallIntercept {
            /// The process.
            pid: u32,
            /// Their numbers; empty: all that belong to the pin.
            calls: Vec<u32>,
            /// What is done with them.
            verdict: CallVerdict,
        }
        /// The same pins: decides about a call held back, by the ticket of its [`crate::Kind::CallIntercepted`] event.
        35 CallDecide {
            /// The ticket.
            ticket: u64,
            /// `Hold` is rejected.
            verdict: CallVerdict,
        }
        /// The same pins: this one intercepts nothing there any more; what is held is made.
        36 CallRelease {
            /// The process.
            pid: u32,
        }
    }
}

wire_struct! {
    /// What is known of one CPU since the pin was loaded.
    CpuState {
        /// The CPU.
        cpu: u32,
        /// Context switches.
        switches: u64,
        /// Time of the last one (`CLOCK_MONOTONIC`, ns; 0: none yet).
        last_switch: u64,
        /// Longest time between two, in ns.
        longest: u64,
        /// Ticks of P_APIC; 0 while no module asked for them.
        ticks: u64,
        /// Time of the last tick.
        last_tick: u64,
        /// Process that runs there.
        pid: u32,
        /// Thread that runs there.
        tid: u32,
    }
}

wire_struct! {
    /// How a thread is scheduled.
    ThreadTime {
        /// The thread.
        tid: u32,
        /// State, as in /proc (`R` running, `S` asleep, `D` in the kernel, `T` stopped, `Z` ended).
        state: u8,
        /// Nanoseconds on a CPU.
        ran_ns: u64,
        /// Nanoseconds ready and waiting for one.
        waited_ns: u64,
        /// Times it was put on a CPU.
        slices: u64,
    }
}

wire_struct! {
    /// A part of a process' address space.
    Region {
        /// First byte.
        start: u64,
        /// First byte after it.
        end: u64,
        /// Bits: 1 readable, 2 writable, 4 executable, 8 shared.
        access: u32,
        /// File or name; empty for anonymous memory.
        name: String,
    }
}

wire_struct! {
    /// A range of addresses.
    Range {
        /// First byte.
        start: u64,
        /// First byte after it.
        end: u64,
    }
}

wire_struct! {
    /// An open file of a process.
    OpenFile {
        /// Descriptor.
        fd: u32,
        /// Where it leads.
        path: String,
        /// Its offset.
        offset: u64,
        /// Flags of open(2).
        flags: u32,
    }
}

wire_struct! {
    /// A socket of a process.
    Socket {
        /// Descriptor.
        fd: u32,
        /// "tcp", "tcp6", "udp", "udp6", "unix", or "other".
        family: String,
        /// Own address.
        local: String,
        /// The peer's address; empty: none.
        peer: String,
        /// Bytes that arrived and were not read.
        unread: u64,
        /// Bytes written that the peer has not acknowledged.
        unsent: u64,
        /// True for a socket that accepts connections.
        listening: bool,
    }
}

wire_struct! {
    /// A pipe, UNIX socket, event counter, message queue or shared memory of a process.
    Channel {
        /// Descriptor; `u32::MAX` for System V objects, which have none.
        fd: u32,
        /// "pipe", "unix", "eventfd", "mqueue", "sysv-shm", "sysv-msg" or "sysv-sem".
        kind: String,
        /// Its identity: equal for both ends of a pipe and for all users of an object.
        identity: u64,
        /// Bytes waiting in it (pipes, sockets, queues).
        waiting: u64,
        /// True if this descriptor can write to it.
        writable: bool,
    }
}

wire_struct! {
    /// The system call that a thread is in.
    CallNow {
        /// The thread.
        tid: u32,
        /// Number of the call; -1: in the program; -2: running, not known.
        number: i64,
        /// Its arguments.
        arguments: Vec<u64>,
    }
}

wire_struct! {
    /// How often an interrupt came, on all CPUs together.
    InterruptCount {
        /// Its number or short name ("24", "LOC", "TIMER").
        name: String,
        /// Hard (false) or soft (true).
        soft: bool,
        /// Times since boot.
        count: u64,
    }
}

wire_enum! {
    /// What a pin answers.
    Reply {
        /// Done.
        0 Done {}
        /// A number: see the command.
        1 Id {
            /// The number.
            id: u64,
        }
        /// A counter.
        2 Counter {
            /// Its id.
            id: u64,
            /// Its value.
            value: u64,
            /// The value's unit.
            unit: Unit,
        }
        /// Bytes.
        3 Bytes {
            /// The bytes.
            bytes: Vec<u8>,
        }
        /// CPUs.
        4 Cpus {
            /// One each.
            cpus: Vec<CpuState>,
        }
        /// Threads.
        5 Threads {
            /// One each.
            threads: Vec<ThreadTime>,
        }
        /// An address space.
        6 Regions {
            /// In the order of addresses.
            regions: Vec<Region>,
        }
        /// Ranges of addresses.
        7 Ranges {
            /// In the order of addresses.
            ranges: Vec<Range>,
        }
        /// A watch of pages, and how it finds them.
        8 Watch {
            /// Its id.
            id: u64,
            /// "tracked" (the program registered the range), "soft-dirty" or "compared".
            method: String,
        }
        /// Files.
        9 Files {
            /// One each.
            files: Vec<OpenFile>,
        }
        /// Sockets.
        10 Sockets {
            /// One each.
            sockets: Vec<Socket>,
        }
        /// Channels.
        11 Channels {
            /// One each.
            channels: Vec<Channel>,
        }
        /// System calls.
        12 Calls {
            /// One for each thread.
            calls: Vec<CallNow>,
        }
        /// Interrupts.
        13 Interrupts {
            /// One each.
            counts: Vec<InterruptCount>,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;

    #[test]
    fn a_command_survives_the_way() {
        let command =
            Command::CounterOpen { target: Target::Thread { tid: 7 }, measure: Measure::CacheMisses {}, reach: 9 };
        let mut bytes = Vec::new();
        command.put(&mut bytes);
        assert_eq!(Command::read(&mut &bytes[..]), Some(command));
        bytes[0] = 200;
        assert_eq!(Command::read(&mut &bytes[..]), None);
    }
}
