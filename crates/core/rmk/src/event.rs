//! What pins send to modules: [`Event`], a fixed-size record, and [`Kind`], which says what its
//! values mean.
//!
//! An event is plain data of 64 bytes: it is made in the kernel, travels through a ring, a queue
//! and the arguments of an orbit call, and is never translated on the way.

use std::fmt;

/// What happened. The numbers below 32 are shared with the kernel programs (`bpf/rmk.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[repr(u32)]
pub enum Kind {
    /// P_SCHL: a CPU went from one thread to another. `pid`, `tid`: the thread that stopped
    /// running. Values: pid and tid of the thread that runs now, scheduler state of the first,
    /// nanoseconds that it ran. Where switches are sampled ([`Event::SAMPLED`]): time slices so
    /// far, 0, 0, nanoseconds run since the last sample.
    ContextSwitch = 1,
    /// P_SCHL: a process or thread was made. Values: pid of the parent, 1 for a thread.
    Started = 2,
    /// P_SCHL: a process executed a new program. Values: former tid of the thread.
    Executed = 3,
    /// P_SCHL: a thread ended. Values: wait status, 1 if it was the last of its process.
    Ended = 4,
    /// P_APIC: a CPU made no context switch during [`crate::Filter::ticks`] ticks of another (or
    /// its own). `cpu`, `pid`, `tid`: the silent CPU and what runs there. Values: ticks,
    /// nanoseconds since its last switch, nanoseconds since its own last tick (old: its interrupts
    /// are off), the CPU that noticed.
    CpuStalled = 5,
    /// P_APIC: the overflow of a CPU's clock. Values: ticks so far, nanoseconds since the CPU's
    /// last switch, its switches so far.
    CpuTick = 6,
    /// P_SIG: a signal was raised for a process. Key: signal. Values: signal, si_code, pid of the
    /// sender, result (0: queued).
    SignalRaised = 7,
    /// P_SIG: a signal is being delivered. Key: signal. Values: signal, si_code, handler (0
    /// default, 1 ignored, or its address). A signal that ends the process by default is delivered
    /// as SIGKILL.
    SignalDelivered = 8,
    /// P_INTR: an interrupt was handled. Key: its number. Values: number, nanoseconds in the
    /// handler, the handler's answer. `pid`, `tid`: what it interrupted.
    Interrupt = 9,
    /// P_INTR: a soft interrupt was handled. Key: its vector. Values: vector, nanoseconds.
    SoftInterrupt = 10,
    /// P_INTR: a page fault of a program. Key: the fault's code. Values: address, code,
    /// instruction.
    PageFault = 11,
    /// P_INTR: the processor rejected an instruction of a program. Key: the signal it becomes.
    /// Values: signal, si_code, address.
    Exception = 12,
    /// P_SYSC, P_FILE, P_NET, P_IPC: a system call begins. Key: its number. Values: number, first
    /// three arguments.
    CallBegun = 13,
    /// P_SYSC, P_FILE, P_NET, P_IPC: a system call is complete. Key: its number. Values: number,
    /// result (as `i64`; negative: errno), nanoseconds, first argument.
    CallCompleted = 14,
    /// P_PMC: a counter reached its mark. Values: counter id, count.
    CounterReached = 32,
    /// P_APIC: an armed overflow of a thread's or CPU's counter. Values: id, count of overflows
    /// since the last event.
    Overflow = 33,
    /// P_DBR: an address was executed or accessed. Values: breakpoint id, address, instruction that
    /// did it.
    Breakpoint = 34,
    /// P_SIG: a signal to a process whose signals are intercepted. Values: ticket to decide with
    /// (0: decided already), signal, si_code, pid of the sender.
    SignalIntercepted = 35,
    /// P_MEM: pages were written. Values: watch id, first byte, first byte after them.
    PagesWritten = 36,
    /// P_PERI: an interval passed. Values: intervals so far, intervals since the last event (more
    /// than 1: the reader was late).
    Period = 37,
    /// P_SYSC, P_FILE, P_NET, P_IPC: a call of a process whose calls are intercepted is about to be
    /// made. Values: ticket to decide with (0: decided already), number, first two arguments.
    CallIntercepted = 38,
    /// P_SIG: a thread is held in place of dying of a signal. Values: ticket to decide with,
    /// signal, address that it is about, instruction. It dies of the signal after
    /// [`crate::Command::SignalDecide`] with `Pass`, or where nobody decides within 5 s;
    /// [`crate::Command::CheckpointRestore`] has it run again.
    SignalFatal = 39,
    /// A remote node's pin: nothing was heard of the node for three seconds, or its connection
    /// ended. Values: nanoseconds since it was last heard.
    LinkLost = 40,
    /// A remote node's pin: the node is heard again, and subscriptions hold again. What happened
    /// there meanwhile is not known. Values: nanoseconds that it was not heard.
    LinkBack = 41,
}

impl Kind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Kind; 24] = [
        Kind::ContextSwitch,
        Kind::Started,
        Kind::Executed,
        Kind::Ended,
        Kind::CpuStalled,
        Kind::CpuTick,
        Kind::SignalRaised,
        Kind::SignalDelivered,
        Kind::Interrupt,
        Kind::SoftInterrupt,
        Kind::PageFault,
        Kind::Exception,
        Kind::CallBegun,
        Kind::CallCompleted,
        Kind::CounterReached,
        Kind::Overflow,
        Kind::Breakpoint,
        Kind::SignalIntercepted,
        Kind::PagesWritten,
        Kind::Period,
        Kind::CallIntercepted,
        Kind::SignalFatal,
        Kind::LinkLost,
        Kind::LinkBack,
    ];

    /// The kind with this number.
    pub fn from_number(number: u32) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One event, as a module gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// When it happened: nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// The subscription that it answers, as `subscr_event` gave it.
    pub subscription: u64,
    /// Number of its [`Kind`], and in the high half the flags ([`Event::SAMPLED`]).
    pub code: u32,
    /// Process it concerns; 0: none (or an idle CPU).
    pub pid: u32,
    /// Thread it concerns; 0: none.
    pub tid: u32,
    /// CPU it happened on.
    pub cpu: u32,
    /// See [`Kind`] for what they mean; those that a kind does not name are 0.
    pub values: [u64; 4],
}

const _: () = assert!(size_of::<Event>() == Event::BYTES);

impl Event {
    /// Size of an event in bytes.
    pub const BYTES: usize = 64;
    /// Flag of `code`: seen by sampling, because this kernel or user cannot see every one.
    pub const SAMPLED: u32 = 1 << 16;

    /// An event of a kind, with everything else 0.
    pub fn new(kind: Kind, time: u64) -> Event {
        Event { time, subscription: 0, code: kind as u32, pid: 0, tid: 0, cpu: 0, values: [0; 4] }
    }

    /// What happened; `None` for a number this version does not know.
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.code & 0xffff)
    }

    /// True if the event is a sample, not the thing itself.
    pub fn is_sampled(&self) -> bool {
        self.code & Event::SAMPLED != 0
    }

    /// The event as bytes, in the machine's order.
    pub fn to_bytes(&self) -> [u8; Event::BYTES] {
        let mut out = [0; Event::BYTES];
        out[..8].copy_from_slice(&self.time.to_ne_bytes());
        out[8..16].copy_from_slice(&self.subscription.to_ne_bytes());
        for (n, word) in [self.code, self.pid, self.tid, self.cpu].iter().enumerate() {
            out[16 + n * 4..20 + n * 4].copy_from_slice(&word.to_ne_bytes());
        }
        for (n, value) in self.values.iter().enumerate() {
            out[32 + n * 8..40 + n * 8].copy_from_slice(&value.to_ne_bytes());
        }
        out
    }

    /// The event that [`Event::to_bytes`] made these from.
    pub fn from_bytes(bytes: &[u8; Event::BYTES]) -> Event {
        let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]));
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]));
        Event {
            time: long(0),
            subscription: long(8),
            code: word(16),
            pid: word(20),
            tid: word(24),
            cpu: word(28),
            values: std::array::from_fn(|n| long(32 + n * 8)),
        }
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of [`Event::time`].
pub fn now() -> u64 {
    orbit_linux::clock::monotonic_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_give_the_same_event_back() {
        let event = Event { time: 1, subscription: 2, code: 3, pid: 4, tid: 5, cpu: 6, values: [7, 8, 9, u64::MAX] };
        assert_eq!(Event::from_bytes(&event.to_bytes()), event);
        assert_eq!(event.kind(), Some(Kind::Executed));
    }
}
