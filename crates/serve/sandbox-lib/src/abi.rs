//! The sandbox region: where its parts are, what they hold, and which side writes each field.
//!
//! ```text
//! BASE        public     1 MiB  read, execute   directory, code and constants          written by the host only
//! +1 MiB      protected  1 MiB  closed          data, heap, stack, record of each slot  open while its handler runs
//!             a gap of 64 KiB
//! +2M+64K     control  128 KiB  read, write     claims, due times, queues, counters     nobody trusts it
//!             a gap of 64 KiB
//! +2M+256K    private   16 KiB  read, write     of each process: what it had before it joined, its runs
//! ```
//!
//! All parts have the same address in every member. Public and protected part are divided into
//! [`SLOTS`] slots of [`SLOT`] bytes: slot 0 of the public part is the [`Directory`], slot 1 the
//! library, the rest are services. A slot's code is at `PUBLIC + n * SLOT`, its data at
//! `PROTECTED + n * SLOT`: a service is linked with its data 1 MiB after its code
//! (`-z max-page-size=0x100000`).
//!
//! Members can write the control part at any time. A wrong word there can delay or drop a run, and
//! make a counter wrong; it cannot reach a service's data or the host, which clamps what it reads.

use crate::direct::{CALLS, Call};
use crate::published::Table;
use crate::question::Questions;
use crate::queue::Queue;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

/// First address of the region, free in ordinary programs: below what the kernel gives to mappings,
/// above heaps.
pub const BASE: usize = 0x7e50_0000_0000;
/// Bytes of a slot in the public part, and in the protected part.
pub const SLOT: usize = 0x1_0000;
/// The power of two that is [`SLOT`].
pub const SLOT_BITS: u32 = 16;
/// Slots of the region.
pub const SLOTS: usize = 16;
/// The first slot for services.
pub const FIRST_SERVICE: usize = 2;
/// The slot of the library.
pub const LIBRARY: usize = 1;
/// The public part.
pub const PUBLIC: usize = BASE;
/// Bytes of the public part.
pub const PUBLIC_LEN: usize = SLOT * SLOTS;
/// The protected part.
pub const PROTECTED: usize = BASE + PUBLIC_LEN;
/// Bytes of the protected part.
pub const PROTECTED_LEN: usize = SLOT * SLOTS;
/// Bytes between parts that a handler may write and what it may run into: nothing is mapped there.
pub const GAP: usize = SLOT;
/// The control part.
pub const CONTROL: usize = PROTECTED + PROTECTED_LEN + GAP;
/// Bytes of the control part.
pub const CONTROL_LEN: usize = 0x2_0000;
/// Bytes of one slot's control structure.
pub const CONTROL_SLOT: usize = CONTROL_LEN / SLOTS;
/// The private part: a page of each process.
pub const PRIVATE: usize = CONTROL + CONTROL_LEN + GAP;
/// Bytes of the private part.
pub const PRIVATE_LEN: usize = 0x4000;
/// The first address after the region.
pub const END: usize = PRIVATE + PRIVATE_LEN;

/// Within a slot's protected part: the record (4 KiB), at the end.
pub const RECORD_AT: usize = SLOT - 0x1000;
/// Within a slot's protected part: the stack that faults and overruns of the handler are taken on.
pub const FAULT_STACK_AT: usize = RECORD_AT - FAULT_STACK_LEN;
/// Bytes of that stack: two signal frames of a CPU with AVX-512.
pub const FAULT_STACK_LEN: usize = 0x3000;
/// Within a slot's protected part: the handler's stack.
pub const STACK_AT: usize = FAULT_STACK_AT - STACK_LEN;
/// Bytes of that stack.
pub const STACK_LEN: usize = 0x4000;

/// What a directory begins with.
pub const MAGIC: u64 = 0x6f72_6269_7473_0007;
/// Handles of a service at most.
pub const GRANTS: usize = 32;
/// Attributes that all services of a host may set, at most.
pub const LEDGER: usize = 1024;
/// Descriptors that a service is given, at most.
pub const FILES: usize = 8;
/// Connections that a service has accepted and not closed, at most: with what it was given as many
/// as a word has bits.
pub const CONNECTIONS: usize = 64 - FILES;
/// Bytes of a service's arguments at most.
pub const ARGUMENTS: usize = 1024;
/// The latest run times and delays that the control part keeps for each slot.
pub const KEPT: usize = 256;
/// Signals whose default action kills and that a wild handler raises.
pub const FAULTS: [i32; 4] = [11, 7, 4, 8];

/// `SIGURG`: programs may have handlers of their own for it, which the library calls.
pub const URGENT: i32 = 23;

/// State of a slot: nothing there.
pub const EMPTY: u32 = 0;
/// State of a slot: events start its handler.
pub const LIVE: u32 = 1;
/// State of a slot: revoked; its handler is not started again.
pub const REVOKED: u32 = 2;

/// Flag of a service: its handler may run in members; else in agents only.
pub const PURE: u32 = 1;
/// Flag of a service: a run raises the priority of the thread it interrupts.
pub const RAISE: u32 = 2;

/// Flag of a service: only a thread of its own runs it.
pub const THREAD: u32 = 4;
/// Flag of a service: that thread waits for descriptors.
pub const GIVEN: u32 = 8;
/// `promoted` of a slot whose event waits for a thread.
pub const MAY_WAIT: u64 = 1;
/// `promoted` of a slot whose event waits for an agent.
pub const FOR_AGENT: u64 = 2;

/// Right: the service may read the attribute.
pub const GET: u32 = 1;
/// Right: the service may set the attribute.
pub const SET: u32 = 2;

/// Read-only in members; the host writes it.
#[repr(C)]
pub struct Directory {
    /// [`MAGIC`].
    pub magic: u64,
    /// The signal that starts an upcall.
    pub upcall_signal: i32,
    /// The signal of a budget's timer.
    pub budget_signal: i32,
    /// Runs that wait longer than this after their time are taken by an agent, nanoseconds.
    pub grace_ns: u64,
    /// The library's ways in.
    pub library: Library,
    /// Nanoseconds of a tick of the CPU's counter, in 65,536ths; 0: the counter does not run at one
    /// speed on all CPUs.
    pub tick_ns: u64,
    /// The host, and when it began, in ticks since the machine did: a region of a host that is gone
    /// can be replaced.
    pub host: i32,
    /// See `host`.
    pub host_began: u64,
    /// What is to be put back when the host is gone.
    pub ledger: [Entry; LEDGER],
    /// The services, by slot.
    pub services: [Service; SLOTS],
}

/// Addresses of the library's functions, by their names.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Library {
    /// `orbit_upcall`.
    pub upcall: u64,
    /// `orbit_over_budget`.
    pub over_budget: u64,
    /// `orbit_fault`.
    pub fault: u64,
    /// `orbit_restorer`.
    pub restorer: u64,
    /// `orbit_agent`.
    pub agent: u64,
    /// `orbit_call`: programs that are members call it themselves.
    pub call: u64,
}

/// A service as members see it. Written by the host: everything before `state` becomes [`LIVE`].
#[repr(C)]
pub struct Service {
    /// [`EMPTY`], [`LIVE`] or [`REVOKED`].
    pub state: AtomicU32,
    /// [`PURE`], [`RAISE`].
    pub flags: u32,
    /// How many services the slot has had, this one included.
    pub generation: u64,
    /// Address of the handler, in the slot's public part.
    pub entry: u64,
    /// Nanoseconds between two timer events; 0: none.
    pub period_ns: u64,
    /// CPU time of one run at most, nanoseconds.
    pub budget_ns: u64,
    /// CPU time within `window_ns` at most, nanoseconds.
    pub reserve_ns: u64,
    /// The window of the reservation, nanoseconds.
    pub window_ns: u64,
    /// The real-time priority a run raises its thread to, if [`RAISE`] is set.
    pub priority: i32,
    /// The number of handles.
    pub grants: u32,
    /// First byte of the heap, in the slot's protected part.
    pub heap: u64,
    /// First byte after the heap.
    pub heap_end: u64,
    /// The handles.
    pub grant: [Grant; GRANTS],
    /// The descriptors that it was given; those without rights are none.
    pub file: [File; FILES],
}

/// A descriptor of a service, in the process of its thread.
#[repr(C)]
#[derive(Debug, Default)]
pub struct File {
    /// Its number there.
    pub number: i32,
    /// [`READ`], [`WRITE`], [`SEND`], [`ACCEPT`]. The host takes them away when the service has
    /// closed it.
    pub rights: AtomicU32,
    /// Time between two calls on it, on average, nanoseconds; 0: no rate.
    pub every_ns: u64,
}

/// Right: the service may read and receive.
pub const READ: u32 = 1;
/// Right: the service may write to the peer that the descriptor is connected to.
pub const WRITE: u32 = 2;
/// Right: the service may send to addresses.
pub const SEND: u32 = 4;
/// Right: the service may accept connections, which have the listener's first two rights.
pub const ACCEPT: u32 = 8;

/// What a handle stands for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Grant {
    /// The handle's value: a random number. A service that holds another number holds nothing.
    pub handle: u64,
    /// A class of [`crate::attribute`].
    pub class: u32,
    /// [`GET`], [`SET`].
    pub rights: u32,
    /// The thread it is about.
    pub target: i32,
    /// 1: values out of range are clamped; 0: refused.
    pub clamp: u32,
    /// The least value.
    pub min: i64,
    /// The largest value.
    pub max: i64,
    /// When the target began, in ticks since the machine did: a number that was given again names
    /// another target. 0: unknown.
    pub began: u64,
    /// Its place in the ledger and in [`sets`], if it may be set.
    pub entry: u32,
}

/// What an attribute was before a service could set it. Agents put it back when the host is gone.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Entry {
    /// A class of [`crate::attribute`]; 0: the entry is free. Written last.
    pub class: AtomicU32,
    /// The target.
    pub target: AtomicI32,
    /// The value.
    pub original: AtomicI64,
    /// When the target began, as [`Grant::began`].
    pub began: AtomicU64,
}

/// What a service set last through a grant: a place in [`sets`]. Every member can write it, so a
/// wrong one keeps something from being put back, or puts back what was never set.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Set(AtomicU64);

impl Set {
    /// Nothing was set yet: this bit turns the only value that could be mistaken for it into
    /// another.
    const BIT: u64 = 1 << 63;

    /// Notes a value.
    pub fn note(&self, value: i64) {
        self.0.store(value as u64 ^ Self::BIT, SeqCst);
    }

    /// The value, if one was set.
    pub fn value(&self) -> Option<i64> {
        let word = self.0.load(SeqCst);
        (word != 0).then_some((word ^ Self::BIT) as i64)
    }

    /// Nothing is set any more.
    pub fn clear(&self) {
        self.0.store(0, SeqCst);
    }
}

/// One slot's words in the control part. Every member can write them.
#[repr(C)]
pub struct Control {
    /// When the next timer event is due, monotonic nanoseconds; 0: no timer.
    pub due: AtomicU64,
    /// The thread that runs the handler: process in the upper half, thread in the lower; 0: none.
    pub runner: AtomicU64,
    /// A run waits for its thread, [`MAY_WAIT`], or for an agent, [`FOR_AGENT`]; else 0.
    pub promoted: AtomicU64,
    /// CPU time used in this window, nanoseconds.
    pub spent_ns: AtomicU64,
    /// When this window began, monotonic nanoseconds.
    pub window_began: AtomicU64,
    /// Runs, of whatever outcome.
    pub runs: AtomicU64,
    /// Runs as an upcall in a member.
    pub upcalls: AtomicU64,
    /// CPU time of all runs, nanoseconds.
    pub cpu_ns: AtomicU64,
    /// Runs aborted over their budget.
    pub overruns: AtomicU64,
    /// Runs aborted for a fault.
    pub faults: AtomicU64,
    /// Events dropped: the reservation was used up.
    pub unpaid: AtomicU64,
    /// Values that a guard refused.
    pub refused: AtomicU64,
    /// Values that a guard clamped.
    pub clamped: AtomicU64,
    /// Calls with a handle that is none.
    pub forged: AtomicU64,
    /// Attributes that the kernel would not set.
    pub failed: AtomicU64,
    /// Runs whose process was killed in the middle.
    pub orphaned: AtomicU64,
    /// The thread and CPU time over budget of the latest abort, nanoseconds.
    pub latest_overrun_ns: AtomicU64,
    /// Runs that were promoted to a thread.
    pub promotions: AtomicU64,
    /// Ticks that were due and were taken: each began a run, was merged with a later one, or was
    /// missed. Raised before the next two.
    pub ticks_due: AtomicU64,
    /// Ticks that were merged: a later one was due as well when they were taken.
    pub ticks_merged: AtomicU64,
    /// Ticks that were missed: the reservation was used up, or the run could not begin.
    pub ticks_missed: AtomicU64,
    /// Ticks merged or missed since the last run that a tick began.
    pub ticks_lost: AtomicU64,
    /// The thread, as in `runner`, that an agent raised since it was preempted in a run; 0: none.
    pub raised: AtomicU64,
    /// 1: a member may not do what the service sets, so that agents take its events.
    pub agents_only: AtomicU32,
    /// Raised with each posted event and each promotion: threads sleep on it.
    pub wake: AtomicU32,
    /// 1: services of the host follow this one, and sleep on `ran`. The host writes it.
    pub followed: AtomicU32,
    /// Raised with each run, if the service is followed.
    pub ran: AtomicU32,
    /// Raised with the end of each posted event's run: callers sleep on it.
    pub finished: AtomicU32,
    /// Callers that sleep on `finished`.
    pub callers: AtomicU32,
    /// 1: the service's thread sleeps on `wake`, or is about to.
    pub asleep: AtomicU32,
    /// Ticks that agents have taken since the last upcall. Written by the run's thread.
    pub moved: AtomicU32,
    /// When the run in progress began, monotonic nanoseconds, the lowest bit set for an upcall; 0:
    /// none is. The thread that holds the claim writes it.
    pub began: AtomicU64,
    /// An agent checks the run in progress at this monotonic time at the latest; 0: at no known
    /// time. The agent writes it.
    pub checked_at: AtomicU64,
    /// The places of descriptors that the service has closed. The host takes them away.
    pub closed: AtomicU64,
    /// Posted events not yet handled.
    pub queue: Queue,
    /// Questions not yet answered.
    pub questions: Questions,
    /// Calls that wait for the end of their event's run.
    pub calls: [Call; CALLS],
    /// Nanoseconds from due to handler, latest runs, by number of the run.
    pub delays: [AtomicU32; KEPT],
    /// CPU nanoseconds, latest runs.
    pub costs: [AtomicU32; KEPT],
}

/// What a run gives its handler and the heap have, in the slot's protected part: the handler may
/// write all of it, so nothing here says how a run ends.
#[repr(C)]
pub struct Record {
    /// Free blocks of the heap: address of the first.
    pub heap_free: u64,
    /// First byte of the heap never given out; 0: all of it.
    pub heap_used: u64,
    /// The call that waits for the end of the run; 0: none does.
    pub call: u64,
    /// What the handler gets.
    pub context: Context,
    /// The event.
    pub event: Event,
    /// The arguments that the service was loaded with.
    pub arguments: [u8; ARGUMENTS],
}

/// A run in progress: how it is bounded and where it ends. In the private part of the process that
/// runs it, which no overrun of the slot reaches. Offsets are used by assembly.
#[repr(C)]
pub struct Run {
    /// Stack pointer that the end of the run returns to.
    pub stack_pointer: u64,
    /// Its complement: a run whose stack pointer was overwritten is not continued.
    pub stack_check: u64,
    /// 1 while the handler runs.
    pub active: AtomicU32,
    /// Why it was aborted: 0, [`OVERRUN`] or a signal's number.
    pub cause: u32,
    /// `stack_t` of the stack for faults.
    pub fault_stack: [u64; 3],
    /// `stack_t` of the thread's own alternate stack, as it was when the handler was called.
    pub own_stack: [u64; 3],
    /// CPU clock of the thread when the handler was called.
    pub cpu_began: u64,
    /// The CPU's counter then.
    pub ticks_began: u64,
    /// 1: the thread's alternate stack is the slot's, in this run and between runs.
    pub keeps_stack: u64,
    /// Monotonic clock then.
    pub began: u64,
    /// The timer that bounds the run; negative: none yet, an agent checks it.
    pub timer: i32,
    /// The thread.
    pub thread: i32,
    /// 1 within a call of the library: an abort waits for its end.
    pub in_call: AtomicU32,
    /// An abort that waits: as `cause`.
    pub pending: u32,
    /// 1: the handler set its own thread's priority, which is applied when the run is over.
    pub own_set: u32,
    /// The priority.
    pub own_priority: i32,
    /// 1: the run may wait, for a thread of the service's own runs it.
    pub may_wait: u32,
    /// 1: it interrupts a member.
    pub is_upcall: u32,
    /// The slot.
    pub slot: u32,
    /// The target that was last found to be the one that its handle was granted for; 0: none in
    /// this run.
    pub checked: i32,
    /// When it began, as [`Grant::began`].
    pub checked_began: u64,
    /// The CPU's counter when it was checked.
    pub checked_at: u64,
    /// What the handler answers to a call of it.
    pub answer: i64,
}

/// `cause` of a run over its budget.
pub const OVERRUN: u32 = 256;
/// `cause` of a run that wants to wait and is not in a thread: it begins again in one.
pub const PROMOTED: u32 = 257;

/// `cause` of a run that sets what this member may not: it begins again in an agent.
pub const ELSEWHERE: u32 = 258;

/// What a handler gets with each event: `struct orbit_context` of `orbit_service.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Where the arguments are.
    pub arguments: u64,
    /// Their bytes.
    pub length: u32,
    /// The number of handles.
    pub handles: u32,
    /// The handles, in the order of the grants.
    pub handle: [u64; GRANTS],
}

/// An event: `struct orbit_event` of `orbit_service.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// [`TIMER`] or [`POSTED`].
    pub kind: u32,
    /// Events of this kind that were dropped or merged since the last one handled.
    pub lost: u32,
    /// When it was due, monotonic nanoseconds.
    pub due_ns: u64,
    /// When the run began, monotonic nanoseconds.
    pub now_ns: u64,
    /// The poster's value.
    pub value: u64,
}

/// Event: the period is over.
pub const TIMER: u32 = 1;
/// Event: posted by a program, another service or a command.
pub const POSTED: u32 = 2;
/// Event: tasks stalled for lack of memory, CPU or I/O.
pub const PRESSURE: u32 = 3;
/// Event: a descriptor became readable.
pub const READABLE: u32 = 4;
/// Event: a tracepoint of the kernel was hit; the value is how often since the last event.
pub const TRACEPOINT: u32 = 5;
/// Event: another service ran; the value is how often since the last event.
pub const SERVICE: u32 = 6;
/// Event: a caller waits for an answer; the value is the question's number.
pub const QUESTION: u32 = 7;

/// A process's own page: what it had before it joined. Inherited, as a copy, by its children.
#[repr(C)]
pub struct Private {
    /// Upcalls that began here.
    pub upcalls: AtomicU64,
    /// Actions of [`FAULTS`] before joining, then of the upcall and the budget signal: handler,
    /// flags, restorer, mask.
    pub actions: [[u64; 4]; 6],
    /// 1: `actions` is complete; nothing was installed before. Whoever joins the process writes it.
    pub saved: u64,
    /// Where whoever joins the process puts what its system calls are given pointers to.
    pub scratch: [u64; 8],
    /// How each slot is opened here: see [`crate::gate`].
    pub gates: [AtomicU32; SLOTS],
    /// Slots that have a protection key here.
    pub keyed: AtomicU32,
    /// In an agent or a thread: what it claims slots with, process and thread; 0 in a member, whose
    /// children have a copy.
    pub claim: AtomicU64,
    /// In a thread: the slot whose stack for faults is its alternate stack all the time; 0: none.
    pub kept: AtomicU32,
    /// In an agent or a thread: its timer for budgets, plus 1; 0: there is none yet.
    pub timer: AtomicI32,
    /// In an agent or a thread: when that timer fires, monotonic nanoseconds; 0: it is not armed.
    pub armed_until: AtomicU64,
    /// Calls of services that threads of the process are in: the region must not be unmapped under
    /// them.
    pub inside: AtomicU32,
    /// For each slot, waits for its service's thread on the CPU that were for nothing: see
    /// [`crate::spin`].
    pub misses: [AtomicU32; SLOTS],
    /// In a thread: the service's descriptors.
    pub files: Files,
    /// For each slot, the run that a thread of this process is in. The thread that holds the slot's
    /// claim writes it.
    pub runs: [Run; SLOTS],
}

/// What the thread of a service knows of its descriptors.
#[repr(C)]
pub struct Files {
    /// The descriptor by which it waits for them, plus 1; 0: there is none.
    pub poll: AtomicI32,
    /// For each place of a connection its number, plus 1; 0: the place is free.
    pub connection: [AtomicI32; CONNECTIONS],
    /// The place of its listener.
    pub listener: [AtomicU32; CONNECTIONS],
    /// For each that was given: when the calls so far would all have been due at its rate,
    /// monotonic nanoseconds.
    pub next_at: [AtomicU64; FILES],
    /// The places of what was given and closed since.
    pub closed: AtomicU64,
    /// The places of calls that were above the rate.
    pub limited: AtomicU64,
    /// Calls that succeeded.
    pub done: AtomicU64,
}

const _: () = {
    assert!(size_of::<Directory>() <= SLOT);
    assert!(size_of::<Control>() <= CONTROL_SLOT);
    assert!(size_of::<Table>() <= CONTROL_SLOT);
    assert!(size_of::<[Set; LEDGER]>() <= CONTROL_SLOT);
    assert!(size_of::<Record>() <= SLOT - RECORD_AT);
    assert!(size_of::<Private>() <= PRIVATE_LEN);
    // orbit_program.h knows this one.
    assert!(core::mem::offset_of!(Directory, library) + core::mem::offset_of!(Library, call) == 64);
    assert!(SLOT == 1 << SLOT_BITS);
};

/// The directory. Valid in members only.
pub fn directory() -> &'static Directory {
    // SAFETY: members have the public part mapped as long as they are members; the host never
    // unmaps a slot.
    unsafe { &*(PUBLIC as *const Directory) }
}

/// The control words of a slot below [`SLOTS`]. Valid in members only.
pub fn control(slot: usize) -> &'static Control {
    // SAFETY: as for the directory; the structure is all atomics, so that others may write it.
    unsafe { &*((CONTROL + slot % SLOTS * CONTROL_SLOT) as *const Control) }
}

/// What programs publish: it has the control words of slot 0, which is no service's. Valid in
/// members only.
pub fn table() -> &'static Table {
    // SAFETY: as for `control`.
    unsafe { &*(CONTROL as *const Table) }
}

/// What services set, by the places of the ledger: it has the control words of the library's slot.
/// Valid in members only.
pub fn sets() -> &'static [Set; LEDGER] {
    // SAFETY: as for `control`.
    unsafe { &*((CONTROL + LIBRARY * CONTROL_SLOT) as *const [Set; LEDGER]) }
}

/// The record of a slot. To be followed only while the slot is open.
pub fn record(slot: usize) -> *mut Record {
    (PROTECTED + slot % SLOTS * SLOT + RECORD_AT) as *mut Record
}

/// The run of a slot in this process.
pub fn run(slot: usize) -> *mut Run {
    let runs = PRIVATE + core::mem::offset_of!(Private, runs);
    (runs + slot % SLOTS * size_of::<Run>()) as *mut Run
}

/// The slot whose protected part has this address.
pub fn slot_at(address: usize) -> Option<usize> {
    (PROTECTED..PROTECTED + PROTECTED_LEN).contains(&address).then(|| (address - PROTECTED) / SLOT)
}

/// The calling process's own page.
pub fn private() -> *mut Private {
    PRIVATE as *mut Private
}
