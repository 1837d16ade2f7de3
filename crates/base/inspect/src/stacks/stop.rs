//! Stopping one thread for as long as it takes to copy its registers and stack.
//!
//! Owns: ptrace. Promises: a thread is let go before the next one is stopped; one that does not
//! stop in time is given up; all are let go at the latest when the thread that stops them ends, for
//! the kernel ties a tracer's hold to that thread, and each capture runs in one of its own. No call
//! of the thread ends early for it: whoever stops one asks first what it [`does`], and one that
//! falls asleep just then is helped by [`ptrace::begin_again`]. A signal that comes in between is
//! handed on. The exit status of a thread that ends meanwhile is never collected: it may be a child
//! of this process, and others wait for it.

use super::unwind::Regs;
use crate::waits::Seen;
use crate::{Error, Maps, Memory, procfs};
use orbit_linux::ptrace;
use orbit_linux::status::Status;
use std::io;
use std::time::{Duration, Instant};

/// Bytes of stack copied of each thread at most.
pub const MAX_STACK: usize = 64 << 10;
/// How long to wait for a thread to stop that sits where it cannot be interrupted. One that merely
/// lacks a CPU gets ten times as long.
pub const MAX_WAIT_FOR_STOP: Duration = Duration::from_millis(50);

/// Registers and stack of a thread at one moment.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) regs: Regs,
    pub(crate) base: u64,
    pub(crate) stack: Vec<u8>,
    pub(crate) stopped: Duration,
    /// Vector and floating-point registers, where they were asked for and the thread was stopped.
    pub(crate) vectors: Option<Vec<u8>>,
}

impl Copied {
    /// A number for registers and stack together: equal numbers mean the same state. Nothing
    /// without the vector registers.
    pub(crate) fn state(&self) -> Option<u64> {
        use std::hash::{Hash, Hasher};
        let vectors = self.vectors.as_ref()?;
        // The same for the same bytes within this process, which is all it is for.
        let mut hash = std::hash::DefaultHasher::new();
        (self.regs.0, self.base, &self.stack, vectors).hash(&mut hash);
        Some(hash.finish())
    }
}

/// Lets the thread go when dropped.
struct Hold {
    tid: i32,
    signal: i32,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Of a thread that is gone or not stopped it fails, which changes nothing.
        let _ = ptrace::detach(self.tid, self.signal);
    }
}

fn failed(tid: i32, what: &'static str, e: io::Error) -> Error {
    if e.raw_os_error() != Some(libc::EPERM) {
        return Error::of(tid, what, e);
    }
    let status = Status::of(tid).unwrap_or_default();
    let by = procfs::tracer(&status);
    if by != 0 {
        Error::Traced { tid, by }
    } else if status.has_ended() {
        Error::Gone { id: tid }
    } else {
        Error::of(tid, what, e)
    }
}

/// What a thread does, as far as a stop is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    /// It runs, or waits for a CPU: perhaps inside a call.
    Runs,
    /// It sleeps where a stop changes nothing.
    Rests,
    /// It sleeps in a call that a stop would end early, or whose time limit would begin anew: all
    /// that are not known to be harmless.
    Waits,
}

/// What a thread does now.
pub(crate) fn does(pid: i32, tid: i32) -> Does {
    let line = procfs::text(&format!("/proc/{pid}/task/{tid}/syscall"), 512).unwrap_or_default();
    let call = match Seen::parse(line.as_bytes()) {
        Some(Seen::Running) => return Does::Runs,
        Some(Seen::In(call)) => call,
        // A page fault of the thread's own code begins again. Without the right to see this it may
        // not be stopped either.
        Some(Seen::Outside(..)) | None => return Does::Rests,
    };
    let harmless = match call.nr {
        libc::SYS_futex => FUTEX_WAITS.contains(&(call.args[1] as libc::c_int & libc::FUTEX_CMD_MASK)),
        libc::SYS_wait4 | libc::SYS_waitid | libc::SYS_flock | libc::SYS_fcntl | libc::SYS_pause => true,
        // No stop reaches a parent that waits for the child of its vfork: that is reported.
        libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => true,
        // Of a pipe the kernel makes them again by itself: one that waits has read nothing yet. One
        // that writes may have written a part.
        libc::SYS_read | libc::SYS_readv => {
            let link = std::fs::read_link(format!("/proc/{pid}/task/{tid}/fd/{}", call.args[0] as i32));
            link.is_ok_and(|l| l.as_os_str().as_encoded_bytes().starts_with(b"pipe:"))
        }
        _ => false,
    };
    if harmless { Does::Rests } else { Does::Waits }
}

/// Waits for a futex that the kernel begins again with the time that is left.
const FUTEX_WAITS: [libc::c_int; 4] = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET, libc::FUTEX_LOCK_PI, FUTEX_LOCK_PI2];
const FUTEX_LOCK_PI2: libc::c_int = 13;

/// Stops a thread, copies, lets it go. `vectors`: those registers too. To be called in a thread
/// that ends soon afterwards.
pub(crate) fn stopped(pid: i32, tid: i32, maps: &Maps, vectors: bool) -> Result<Copied, Error> {
    ptrace::seize(tid, 0).map_err(|e| failed(tid, "tracing", e))?;
    let mut hold = Hold { tid, signal: 0 };
    let since = Instant::now();
    ptrace::interrupt(tid).map_err(|e| failed(tid, "interrupting", e))?;
    hold.signal = wait(tid, since)?;
    ptrace::begin_again(tid);
    let r = ptrace::registers(tid).map_err(|e| failed(tid, "reading registers", e))?;
    let (base, stack) = copy(pid, r.rsp, maps);
    let vectors = if vectors { ptrace::state::vectors(tid).ok() } else { None };
    drop(hold);
    let all = [
        r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15,
        r.rip,
    ];
    Ok(Copied { regs: Regs(all.map(Some)), base, stack, stopped: since.elapsed(), vectors })
}

/// Waits until a thread that was interrupted has stopped; the signal it was about to get, if one.
fn wait(tid: i32, since: Instant) -> Result<i32, Error> {
    let mut polls = 0u32;
    loop {
        if let Some(status) = ptrace::state::collect_stop(tid).map_err(|_| Error::Gone { id: tid })? {
            // An event stop carries a number above the signal; a plain stop is a signal to be
            // handed on.
            return Ok(if status >> 8 == 0 { status } else { 0 });
        }
        let waited = since.elapsed();
        let state = if polls.is_multiple_of(64) && polls > 0 { state(tid) } else { ' ' };
        if matches!(state, 'Z' | 'X') {
            return Err(Error::Gone { id: tid });
        }
        if waited > MAX_WAIT_FOR_STOP * 10 || waited > MAX_WAIT_FOR_STOP && state == 'D' {
            let waited_ms = waited.as_millis() as u64;
            return Err(Error::NotStopped { tid, waited_ms });
        }
        polls += 1;
        if polls < 50 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// Gives the calling thread priority over others, if that is allowed: while it waits for a CPU,
/// another thread is stopped.
pub(crate) fn hurry() {
    // 0 is the calling thread, which ends after the capture.
    let _ = orbit_linux::sched::set_nice(0, -19);
}

/// The scheduler's letter for a thread, `X` once there is none.
fn state(tid: i32) -> char {
    Status::of(tid).ok().and_then(|status| status.state()).unwrap_or('X')
}

/// Registers and stack of a thread that sleeps, without stopping it. Program counter and stack
/// pointer are all that is known of its registers.
pub(crate) fn asleep(pid: i32, tid: i32, maps: &Maps) -> Result<Option<Copied>, Error> {
    let path = format!("/proc/{pid}/task/{tid}/syscall");
    let read_call = || procfs::text(&path, 512).map_err(|e| Error::of(tid, "seeing the system call", e));
    let before = read_call()?;
    let (sp, pc) = match Seen::parse(before.as_bytes()) {
        Some(Seen::In(c)) => (c.sp, c.pc),
        // Of one that has ended both are 0.
        Some(Seen::Outside(sp, pc)) if sp != 0 => (sp, pc),
        _ => return Ok(None),
    };
    let (base, stack) = copy(pid, sp, maps);
    if read_call()? != before {
        return Ok(None);
    }
    let mut regs = Regs::default();
    regs.0[7] = Some(sp);
    regs.0[16] = Some(pc);
    Ok(Some(Copied { regs, base, stack, stopped: Duration::ZERO, vectors: None }))
}

/// The stack from just below its pointer, where leaf functions keep things, to the end of its
/// mapping.
pub(super) fn copy(pid: i32, sp: u64, maps: &Maps) -> (u64, Vec<u8>) {
    let base = (sp & !7).saturating_sub(128);
    let end = maps.at(sp).map_or(u64::MAX, |m| m.end);
    let len = MAX_STACK.min(usize::try_from(end - base.min(end)).unwrap_or(MAX_STACK));
    (base, Memory::of(pid).vec(base, len))
}
