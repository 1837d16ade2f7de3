//! Stopping one thread for as long as it takes to copy its registers and stack.
//!
//! Owns: ptrace. Promises: a thread is let go before the next one is stopped; one that does not stop in time is given up;
//! all are let go at the latest when the thread that stops them ends, for the kernel ties a tracer's hold to that thread,
//! and each capture runs in one of its own. A signal that comes in between is handed on.

use super::unwind::Regs;
use crate::waits::Seen;
use crate::{Error, Maps, Memory, procfs};
use std::io;
use std::time::{Duration, Instant};

/// Bytes of stack copied of each thread at most.
pub const MAX_STACK: usize = 64 << 10;
/// How long to wait for a thread to stop that sits where it cannot be interrupted. One that merely lacks a CPU gets ten
/// times as long.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// Registers and stack of a thread at one moment.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) regs: Regs,
    pub(crate) base: u64,
    pub(crate) stack: Vec<u8>,
    pub(crate) stopped: Duration,
}

/// Lets the thread go when dropped.
struct Hold {
    tid: i32,
    signal: i32,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: plain call with numbers; of a thread that is gone or not stopped it fails, which changes nothing.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, 0usize, self.signal as usize) };
    }
}

fn failed(tid: i32, what: &'static str, e: io::Error) -> Error {
    if e.raw_os_error() != Some(libc::EPERM) {
        return Error::of(tid, what, e);
    }
    let status = procfs::text(&format!("/proc/{tid}/status"), 8192).unwrap_or_default();
    let by = procfs::tracer(&status);
    let letter = procfs::field(&status, "State").unwrap_or("X");
    if by != 0 {
        Error::Traced { tid, by }
    } else if letter.starts_with(['Z', 'X']) {
        Error::Gone { id: tid }
    } else {
        Error::of(tid, what, e)
    }
}

/// Stops a thread, copies, lets it go. To be called in a thread that ends soon afterwards.
pub(crate) fn stopped(pid: i32, tid: i32, maps: &Maps) -> Result<Copied, Error> {
    // SAFETY: plain call with numbers.
    if unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0usize, 0usize) } != 0 {
        return Err(failed(tid, "tracing", io::Error::last_os_error()));
    }
    let mut hold = Hold { tid, signal: 0 };
    let since = Instant::now();
    // SAFETY: plain call with numbers.
    if unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0usize, 0usize) } != 0 {
        return Err(failed(tid, "interrupting", io::Error::last_os_error()));
    }
    hold.signal = wait(tid, since)?;
    // SAFETY: all-zero bytes are a valid value of this struct of integers.
    let mut r: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: `r` is as large as the kernel's answer to GETREGS.
    if unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid, 0usize, &raw mut r) } != 0 {
        return Err(failed(tid, "reading registers", io::Error::last_os_error()));
    }
    let (base, stack) = copy(pid, r.rsp, maps);
    drop(hold);
    let all = [
        r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15,
        r.rip,
    ];
    Ok(Copied { regs: Regs(all.map(Some)), base, stack, stopped: since.elapsed() })
}

/// Waits until a thread that was interrupted has stopped; the signal it was about to get, if one.
fn wait(tid: i32, since: Instant) -> Result<i32, Error> {
    let mut looks = 0u32;
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer.
        let n = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) };
        if n == tid {
            if !libc::WIFSTOPPED(status) {
                return Err(Error::Gone { id: tid });
            }
            // An event stop carries a number above the signal; a plain stop is a signal to be handed on.
            return Ok(if status >> 16 == 0 { libc::WSTOPSIG(status) } else { 0 });
        }
        if n < 0 {
            return Err(Error::Gone { id: tid });
        }
        let waited = since.elapsed();
        if waited > PATIENCE * 10 || waited > PATIENCE && uninterruptible(tid) {
            let waited_ms = waited.as_millis() as u64;
            return Err(Error::NotStopped { tid, waited_ms });
        }
        looks += 1;
        if looks < 50 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// Puts the calling thread in front of others, if that is allowed: while it waits for a CPU somebody else is stopped.
pub(crate) fn hurry() {
    // SAFETY: plain call; 0 is the calling thread, which ends after the capture.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -19) };
}

/// Whether a thread waits where signals do not reach.
fn uninterruptible(tid: i32) -> bool {
    let status = procfs::text(&format!("/proc/{tid}/status"), 8192).unwrap_or_default();
    procfs::field(&status, "State").is_none_or(|s| s.starts_with('D'))
}

/// Registers and stack of a thread that sleeps, without stopping it. Program counter and stack pointer are all that is
/// known of its registers.
pub(crate) fn asleep(pid: i32, tid: i32, maps: &Maps) -> Result<Option<Copied>, Error> {
    let path = format!("/proc/{pid}/task/{tid}/syscall");
    let look = || procfs::text(&path, 512).map_err(|e| Error::of(tid, "seeing the system call", e));
    let before = look()?;
    let (sp, pc) = match Seen::parse(before.as_bytes()) {
        Some(Seen::In(c)) => (c.sp, c.pc),
        Some(Seen::Outside(sp, pc)) => (sp, pc),
        _ => return Ok(None),
    };
    let (base, stack) = copy(pid, sp, maps);
    if look()? != before {
        return Ok(None);
    }
    let mut regs = Regs::default();
    regs.0[7] = Some(sp);
    regs.0[16] = Some(pc);
    Ok(Some(Copied { regs, base, stack, stopped: Duration::ZERO }))
}

/// The stack from just below its pointer, where leaf functions keep things, to the end of its mapping.
fn copy(pid: i32, sp: u64, maps: &Maps) -> (u64, Vec<u8>) {
    let base = (sp & !7).saturating_sub(128);
    let end = maps.at(sp).map_or(u64::MAX, |m| m.end);
    let len = MAX_STACK.min(usize::try_from(end - base.min(end)).unwrap_or(MAX_STACK));
    (base, Memory::of(pid).vec(base, len))
}
