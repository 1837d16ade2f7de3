//! The black box: what a dying orbit leaves behind about its death, and how main reads it.
//!
//! It lies in memory that the orbit writes and main reads, so main trusts none of it: every word is
//! read once and checked. In the orbit, [`prepare`] sets handlers for the signals that mean a bug.
//! A handler runs on a stack of its own, so a stack overflow is recorded too. It uses nothing that
//! a crash in the middle of `malloc` could have left locked, and it takes its steps in the order of
//! their worth:
//!
//! 1. signal, address, registers; then the record counts, whatever happens next;
//! 2. whether memory was exhausted (a mapping of the size asked for fails);
//! 3. the call stack, frame by frame. If the unwinder itself faults, or hangs for a second, the
//!    orbit dies at once;
//! 4. the default action and the same signal once more: whoever waits for the orbit sees the true
//!    cause.
//!
//! Not recorded: deaths that run no handler (SIGKILL, `_exit`, out of memory in a control group),
//! and a stack overflow in a thread that the task made without a signal stack.

use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use orbit_linux::map::{self, Mapping};
use orbit_linux::process;
use orbit_linux::rlimit::{self, Resource};
use orbit_linux::signals::{self, Action, Set};

use crate::error::{Error, Result};
use crate::mains_shared;

pub use symbols::{Crash, Frame, signal_name};
pub(crate) use symbols::{Function, Stack, find_functions};

mod symbols;

/// Frames that are kept of a call stack.
pub(crate) const MAX_FRAMES: usize = 64;
/// Bytes that are kept of a message.
pub(crate) const MAX_MESSAGE: usize = 256;

/// "orbit", and the version of the layout.
const MAGIC: u32 = 0x6f72_6201;
/// The message, if any, and everything but the frames are there; frames count one by one.
const STATE_RECORDED: u32 = 2;
/// The stack that handlers run on.
const SIGNAL_STACK: usize = 128 * 1024;
/// Seconds that the handler may take.
const PATIENCE: libc::c_uint = 1;

/// The signals that mean a bug in the task.
pub(crate) const SIGNALS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT, libc::SIGSYS, libc::SIGTRAP];

/// What a dying orbit leaves. Writer of all: the orbit; reader: main. All zeros: nothing is
/// recorded.
#[repr(C, align(64))]
pub struct BlackBox {
    /// [`MAGIC`], once the record counts.
    magic: AtomicU32,
    /// Written last: 0, [`STATE_RECORDED`].
    state: AtomicU32,
    /// Number of the signal.
    signal: AtomicI32,
    /// Its `si_code`.
    code: AtomicI32,
    /// Number of the thread that crashed.
    thread: AtomicI32,
    /// 1: a mapping of the reserve failed at the time of the crash.
    memory_exhausted: AtomicU32,
    /// Address that the fault is about (`si_addr`).
    address: AtomicU64,
    /// Program counter.
    pc: AtomicU64,
    /// Stack pointer.
    sp: AtomicU64,
    /// Frames that are there; at most [`MAX_FRAMES`].
    frame_count: AtomicU32,
    /// Bytes of the message; at most [`MAX_MESSAGE`].
    message_len: AtomicU32,
    /// The exact program counter, then return addresses.
    frames: [AtomicU64; MAX_FRAMES],
    /// UTF-8, perhaps cut off.
    message: [AtomicU8; MAX_MESSAGE],
}

const _: () = assert!(size_of::<BlackBox>() == 832 && align_of::<BlackBox>() == 64);

impl BlackBox {
    const fn empty() -> BlackBox {
        BlackBox {
            magic: AtomicU32::new(0),
            state: AtomicU32::new(0),
            signal: AtomicI32::new(0),
            code: AtomicI32::new(0),
            thread: AtomicI32::new(0),
            memory_exhausted: AtomicU32::new(0),
            address: AtomicU64::new(0),
            pc: AtomicU64::new(0),
            sp: AtomicU64::new(0),
            frame_count: AtomicU32::new(0),
            message_len: AtomicU32::new(0),
            frames: [const { AtomicU64::new(0) }; MAX_FRAMES],
            message: [const { AtomicU8::new(0) }; MAX_MESSAGE],
        }
    }
}

/// A black box as main has read it: numbers within their limits, otherwise whatever the orbit
/// wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Number of the signal.
    pub signal: i32,
    /// Its `si_code`.
    pub code: i32,
    /// Number of the thread that crashed.
    pub thread: i32,
    /// Whether memory was exhausted.
    pub memory_exhausted: bool,
    /// Address that the fault is about.
    pub address: usize,
    /// Program counter.
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
    /// The exact program counter, then return addresses.
    pub frames: Vec<u64>,
    /// The message of a Rust panic, or what the library has to say of the fault; control characters
    /// taken out.
    pub message: Option<String>,
}

impl Record {
    /// As a crash by `signal`, which is how the orbit really ended.
    pub(crate) fn into_crash(self, signal: i32) -> Crash {
        Crash::new(signal, self.code, self.address, self.frames, self.message)
    }
}

/// Main: what the orbit left, if anything.
///
/// # Safety
/// The pointer is to a black box that is mapped and readable; others may be writing to it.
pub(crate) unsafe fn read(black_box: *const BlackBox) -> Option<Record> {
    // SAFETY: as the caller vouches; all fields are atomics, so writes by the orbit are no data
    // race.
    let black_box = unsafe { &*black_box };
    let state = black_box.state.load(Ordering::Acquire);
    if black_box.magic.load(Ordering::Relaxed) != MAGIC || state != STATE_RECORDED {
        return None;
    }
    let frame_count = (black_box.frame_count.load(Ordering::Acquire) as usize).min(MAX_FRAMES);
    let message_len = (black_box.message_len.load(Ordering::Acquire) as usize).min(MAX_MESSAGE);
    let bytes: Vec<u8> = black_box.message[..message_len].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    let message: String = String::from_utf8_lossy(&bytes).chars().map(printable).collect();
    Some(Record {
        signal: black_box.signal.load(Ordering::Relaxed),
        code: black_box.code.load(Ordering::Relaxed),
        thread: black_box.thread.load(Ordering::Relaxed),
        memory_exhausted: black_box.memory_exhausted.load(Ordering::Relaxed) != 0,
        address: black_box.address.load(Ordering::Relaxed) as usize,
        pc: black_box.pc.load(Ordering::Relaxed),
        sp: black_box.sp.load(Ordering::Relaxed),
        frames: black_box.frames[..frame_count].iter().map(|frame| frame.load(Ordering::Relaxed)).collect(),
        message: Some(message).filter(|message| !message.is_empty()),
    })
}

fn printable(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

/// The black box of this orbit; null in main.
static BLACK_BOX: AtomicPtr<BlackBox> = AtomicPtr::new(null_mut());
/// Bytes to try and map in order to see whether memory is exhausted.
static PROBE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Number of the thread that is recording its crash; 0: none yet.
static CRASHING: AtomicI32 = AtomicI32::new(0);
/// The signal to die of.
static CAUSE: AtomicI32 = AtomicI32::new(0);

/// Orbit: sets the handlers, and a signal stack for the calling thread, which is the one that will
/// run the tasks. This is the slow part (0.1 ms), to be done before the orbit is needed. A crash
/// leaves its record from [`install`] on.
///
/// No core file is written for an orbit, unless its init function raises `RLIMIT_CORE` again:
/// writing one would block the restart for as long as it takes to write all areas to disk.
pub(crate) fn prepare() -> Result<()> {
    signal_stack()?;
    // The first walk binds symbols and fills caches, with locks and malloc: better now than in a
    // handler.
    // SAFETY: the only other walks in this process are those of the handler, after the process is
    // past caring.
    unsafe { backtrace::trace_unsynchronized(|frame| !frame.ip().is_null()) };
    for signal in SIGNALS {
        handle(signal, record as *const () as usize).map_err(|error| Error::system("handler for a crash", error))?;
        // The kernel ends a process without asking the handler if the signal of a fault is blocked.
        Set::of([signal]).unblock();
    }
    // 1 stands for no core file even where a program takes them from the kernel; 0 would not.
    let core = rlimit::get(0, Resource::Core).and_then(|(_, hard)| rlimit::set(0, Resource::Core, hard.min(1), hard));
    core.map_err(|error| Error::system("limit of core files", error))?;
    std::panic::set_hook(Box::new(leave_panic_message));
    Ok(())
}

/// Orbit: from now on a crash leaves its record here. `reserve_probe_bytes` is how much a healthy
/// orbit should always be able to allocate; 0 leaves open whether memory was exhausted.
///
/// # Safety
/// The black box stays mapped and writable until the process ends.
pub(crate) unsafe fn install(black_box: *mut BlackBox, reserve_probe_bytes: usize) {
    PROBE_BYTES.store(reserve_probe_bytes, Ordering::Relaxed);
    BLACK_BOX.store(black_box, Ordering::Release);
}

/// A stack for handlers, with a page below it that nobody may touch. It is never released.
fn signal_stack() -> Result<()> {
    let doing = "signal stack of an orbit";
    let page = orbit_linux::map::page_size();
    // SAFETY: asks the kernel for a number.
    let least = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
    let usable = (SIGNAL_STACK + least).next_multiple_of(page);
    let stack = Mapping::uncharged(page + usable).map_err(|e| Error::system(doing, e))?;
    // SAFETY: the first page of the mapping just made.
    unsafe { map::protect(stack.addr(), page, libc::PROT_NONE) }.map_err(|e| Error::system(doing, e))?;
    // SAFETY: what follows that page, which stays mapped for the life of the process and is this
    // stack's only.
    unsafe { signals::use_stack(stack.as_ptr().wrapping_add(page), usable) }.map_err(|e| Error::system(doing, e))?;
    stack.leak();
    Ok(())
}

/// Sets a handler: on the signal stack, with the signal itself not blocked meanwhile, so that a
/// fault in the handler comes back to it instead of to the kernel's own end.
fn handle(signal: c_int, handler: usize) -> std::io::Result<()> {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handlers passed here are functions of this file with the signature for
    // SA_SIGINFO.
    unsafe { Action::handler(handler, flags, &Set::of([])).install(signal) }
}

/// The handler of a crash. Uses system calls, atomics and the unwinder, nothing else.
extern "C" fn record(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let thread = process::own_thread_id();
    match CRASHING.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => CAUSE.store(signal, Ordering::Relaxed),
        // A fault while recording: what is recorded so far has to do.
        Err(first) if first == thread => die(),
        // Another thread is recording; it ends the process, and so does the alarm.
        Err(_) => loop {
            signals::pause();
        },
    }
    let _ = handle(libc::SIGALRM, out_of_patience as *const () as usize);
    Set::of([libc::SIGALRM]).unblock();
    signals::alarm(PATIENCE);

    let black_box = BLACK_BOX.load(Ordering::Relaxed);
    if black_box.is_null() {
        die();
    }
    // SAFETY: the caller of `install` promised that the black box stays mapped.
    let black_box = unsafe { &*black_box };
    // SAFETY: the kernel passes valid pointers to a handler set with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as u64) };
    let sent = code <= 0 || signal == libc::SIGABRT;
    let address = if sent { 0 } else { address };
    let (pc, sp) = registers(context);
    black_box.signal.store(signal, Ordering::Relaxed);
    black_box.code.store(code, Ordering::Relaxed);
    black_box.address.store(address, Ordering::Relaxed);
    black_box.thread.store(thread, Ordering::Relaxed);
    black_box.pc.store(pc, Ordering::Relaxed);
    black_box.sp.store(sp, Ordering::Relaxed);
    black_box.frames[0].store(pc, Ordering::Relaxed);
    black_box.frame_count.store(1, Ordering::Relaxed);
    let has_stack = signal == libc::SIGABRT && copy_panic(black_box, thread);
    if let Some(what) = mains_shared::what_of(address as usize).filter(|_| !sent) {
        let mut message = MessageWriter { black_box, len: 0 };
        let _ = message.write_str(what);
    }
    black_box.magic.store(MAGIC, Ordering::Relaxed);
    // Release: main sees all of the above before the state that says so.
    black_box.state.store(STATE_RECORDED, Ordering::Release);

    black_box.memory_exhausted.store(u32::from(exhausted()), Ordering::Release);

    let fetch = (signal == libc::SIGSEGV || signal == libc::SIGBUS) && !sent && address == pc;
    if !has_stack {
        walk(black_box, pc, if fetch { step_back(context) } else { None });
    }
    die();
}

/// Stores the return addresses above the handler. `caller` is where a jump into nowhere came from.
fn walk(black_box: &BlackBox, pc: u64, caller: Option<u64>) {
    let mut count = 1;
    let mut keep = |ip: u64| {
        black_box.frames[count].store(ip, Ordering::Relaxed);
        count += 1;
        // Release: main sees the frame before the number that counts it.
        black_box.frame_count.store(count as u32, Ordering::Release);
        count < MAX_FRAMES
    };
    if let Some(caller) = caller {
        keep(caller);
    }
    // The frames of the handler come first; the interrupted function is the one with the program
    // counter of the crash.
    let first = caller.map_or(pc, |caller| caller - 1);
    let mut above = false;
    // SAFETY: no other walk is under way: other threads that crash wait, and the process does not
    // continue.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            let ip = frame.ip() as u64;
            if above {
                return ip != 0 && keep(ip);
            }
            above = ip == first;
            true
        });
    }
}

/// Program counter and stack pointer of the interrupted thread.
#[cfg(target_arch = "x86_64")]
fn registers(context: *mut c_void) -> (u64, u64) {
    // SAFETY: the kernel passes a `ucontext_t` to a handler set with SA_SIGINFO.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    (registers[libc::REG_RIP as usize] as u64, registers[libc::REG_RSP as usize] as u64)
}

/// After a call of an address where there is no code, restores the saved registers as they were at
/// the call, so that the unwinder, which reads them, has code to start from. Returns the return
/// address.
#[cfg(target_arch = "x86_64")]
fn step_back(context: *mut c_void) -> Option<u64> {
    // SAFETY: the kernel passes a `ucontext_t` to a handler set with SA_SIGINFO; nothing else
    // refers to it.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let sp = registers[libc::REG_RSP as usize] as u64;
    if sp == 0 || !sp.is_multiple_of(8) {
        return None;
    }
    // SAFETY: a call pushed the return address here. If it was no call and the stack pointer is
    // wild as well, the fault comes back to the handler, which then ends the process with what is
    // recorded.
    let caller = unsafe { (sp as *const u64).read_volatile() };
    if caller < 4096 {
        return None;
    }
    // The call instruction itself, not what follows it: that may belong to another function.
    registers[libc::REG_RIP as usize] = caller as i64 - 1;
    registers[libc::REG_RSP as usize] = sp as i64 + 8;
    Some(caller)
}

#[cfg(target_arch = "aarch64")]
fn registers(context: *mut c_void) -> (u64, u64) {
    // SAFETY: the kernel passes a `ucontext_t` to a handler set with SA_SIGINFO.
    let machine = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    (machine.pc, machine.sp)
}

#[cfg(target_arch = "aarch64")]
fn step_back(context: *mut c_void) -> Option<u64> {
    // SAFETY: the kernel passes a `ucontext_t` to a handler set with SA_SIGINFO; nothing else
    // refers to it.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let caller = machine.regs[30];
    if caller < 4096 {
        return None;
    }
    machine.pc = caller - 1;
    Some(caller)
}

/// Whether memory that a healthy orbit should be able to get is not available.
fn exhausted() -> bool {
    let bytes = PROBE_BYTES.load(Ordering::Relaxed);
    if bytes == 0 {
        return false;
    }
    // Not touched, and unmapped at once.
    Mapping::anonymous(bytes, false).is_err()
}

/// The handler of the alarm: the unwinder hangs.
extern "C" fn out_of_patience(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    die();
}

/// Ends the process by the signal that began it all.
fn die() -> ! {
    let signal = CAUSE.load(Ordering::Relaxed);
    signals::reset(signal);
    Set::of([signal]).unblock();
    let _ = signals::send_to_thread(std::process::id() as i32, process::own_thread_id(), signal);
    // Only the first process of a container outlives that.
    process::end(128 + signal)
}

/// What is known of the panic that was last, of the thread that it names: it counts only if the
/// process aborts of it. Its state: whether its stack has been unwound.
static PANIC: BlackBox = BlackBox::empty();
const UNWOUND: u32 = 1;
/// Not 0 while the thread that takes calls runs a function of the task.
static IN_TASK: AtomicU32 = AtomicU32::new(0);
/// Messages of panics that follow another one which nothing has caught: its stack is gone.
const AFTERWORDS: [&str; 2] = ["panic in a function that cannot unwind", "panic in a destructor during cleanup"];

/// Orbit: the calling thread, which takes calls, enters or leaves a function of the task.
pub(crate) fn note_in_task(is_in: bool) {
    IN_TASK.store(is_in.into(), Ordering::Relaxed);
}

/// The hook for Rust panics: keeps the message and the call stack, for the case that nothing
/// catches the panic, and the process aborts. One that the task catches is the task's affair. In
/// the orbit's own code, which catches none, it aborts at once.
///
/// Not inlined, so that a call stack shows it by this name.
#[inline(never)]
fn leave_panic_message(panic: &std::panic::PanicHookInfo<'_>) {
    let thread = process::own_thread_id();
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(|s| &s[..]));
    let is_afterword = text.is_some_and(|text| AFTERWORDS.contains(&text));
    if is_afterword && PANIC.thread.load(Ordering::Relaxed) == thread {
        PANIC.state.store(UNWOUND, Ordering::Relaxed);
    } else {
        PANIC.state.store(0, Ordering::Relaxed);
        PANIC.thread.store(thread, Ordering::Relaxed);
        let _ = write!(MessageWriter { black_box: &PANIC, len: 0 }, "{panic}");
        keep_stack_of_panic();
    }
    let is_own = thread == std::process::id() as i32 && IN_TASK.load(Ordering::Relaxed) == 0;
    if is_own || is_afterword || cfg!(panic = "abort") {
        std::process::abort();
    }
}

/// Notes the frames above the hook.
fn keep_stack_of_panic() {
    let mut count = 0;
    let mut is_above = false;
    backtrace::trace(|frame| {
        let ip = frame.ip() as u64;
        if is_above && ip != 0 {
            // The first one counts as exact.
            PANIC.frames[count].store(if count == 0 { ip - 1 } else { ip }, Ordering::Relaxed);
            count += 1;
        }
        is_above |= frame.symbol_address() == leave_panic_message as *mut c_void;
        count < MAX_FRAMES
    });
    PANIC.frame_count.store(count as u32, Ordering::Relaxed);
}

/// Copies what is known of the panic that this thread aborts of, if it does; returns whether the
/// stack is the panic's too.
fn copy_panic(to: &BlackBox, thread: i32) -> bool {
    if PANIC.thread.load(Ordering::Relaxed) != thread || !std::thread::panicking() {
        return false;
    }
    let copy = |to: &AtomicU32, from: &AtomicU32| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    for (to, from) in to.message.iter().zip(&PANIC.message) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    copy(&to.message_len, &PANIC.message_len);
    let is_stack = PANIC.state.load(Ordering::Relaxed) == UNWOUND && PANIC.frame_count.load(Ordering::Relaxed) > 0;
    if is_stack {
        for (to, from) in to.frames.iter().zip(&PANIC.frames) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        copy(&to.frame_count, &PANIC.frame_count);
    }
    is_stack
}

/// Writes text into the black box, without allocating, and drops what does not fit.
struct MessageWriter<'a> {
    black_box: &'a BlackBox,
    len: usize,
}

impl fmt::Write for MessageWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (slot, &byte) in self.black_box.message[self.len..].iter().zip(text.as_bytes()) {
            slot.store(byte, Ordering::Relaxed);
            self.len += 1;
        }
        self.black_box.message_len.store(self.len as u32, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
