//! Keeping a program that runs already: handlers for fatal signals are put into it, and taken out
//! again.
//!
//! In the program, from a free address on: the code of `side/armed.c`, the program's own actions,
//! the shared memory. Only memory, threads, mappings and files go back then: its calls were not
//! logged from the start.

use crate::error::Error;
use crate::layout::{Orders, PAGE, VERSION};
use crate::shared::{MAIN_STACK_BYTES, STACK_BYTES, Shared};
use graft::{Process, Protection, Region, Source, Stopped, free_address};
use orbit_linux::procfs;
use std::mem::offset_of;

/// See `side/armed.c`.
const CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/armed.bin"));
const CODE_BYTES: u64 = 2 * PAGE as u64;
const ACTIONS: u64 = PAGE as u64;
const RESTORER: u64 = 16;

pub(crate) const FATAL: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS];
const SA_RESTORER: u64 = 0x0400_0000;

/// The kernel's form of a signal's action: handler, flags, restorer, mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Action([u64; 4]);

impl Action {
    fn bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: [u8; 32]) -> Action {
        let word = |nth: usize| u64::from_ne_bytes(bytes[nth * 8..nth * 8 + 8].try_into().unwrap_or_default());
        Action(std::array::from_fn(word))
    }

    /// Whether the signal would kill the program, after a report of its own perhaps; `reporter`:
    /// see [`reporter`].
    fn kills(self, reporter: Option<u64>) -> bool {
        self.0[0] == libc::SIG_DFL as u64
            || self.0[1] & libc::SA_RESETHAND as u64 != 0
            || reporter.is_some_and(|reporter| self.0[0] == reporter)
    }
}

/// Address of the handler that Rust's standard library sets for SIGSEGV and SIGBUS, if the program
/// has one and its symbols: it names a stack overflow, and lets the program die in each case.
fn reporter(pid: i32) -> Option<u64> {
    let maps = orbit_inspect::Maps::of(pid).ok()?;
    let wanted = "stack_overflow::imp::signal_handler".parse().ok()?;
    orbit_inspect::functions::find(pid, &maps, &wanted).ok().map(|function| function.address)
}

/// A program with our handlers in it.
#[derive(Debug)]
pub(crate) struct Attached {
    base: u64,
    armed: Vec<i32>,
    /// Signals that the program handles itself, and that are left to it.
    pub left: Vec<i32>,
    has_stack: bool,
}

/// The process id as the program itself sees it.
fn inner_pid(pid: i32) -> i32 {
    let status = procfs::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.and_then(|ids| ids.split_whitespace().last()?.parse().ok()).unwrap_or(pid)
}

impl Attached {
    /// What the kernel calls at a fatal signal.
    pub fn handler(&self) -> u64 {
        self.base
    }

    /// Puts the handlers in. The program stands still for some ms.
    pub fn new(process: &Process, shared: &Shared) -> Result<Attached, Error> {
        clear_away(process)?;
        let shared_bytes = (3 * PAGE + STACK_BYTES) as u64;
        let base = free_address(&[process], CODE_BYTES + shared_bytes)?;
        let reporter = reporter(process.pid());
        process.while_stopped(|stopped| {
            let front = base + CODE_BYTES;
            let source = |offset: usize| Source::File { file: shared.file(), offset: offset as u64, shared: true };
            let orders = stopped.map(Some(front), PAGE as u64, Protection::READ, source(0))?;
            let rest = front + PAGE as u64;
            let rest = stopped.map(Some(rest), shared_bytes - PAGE as u64, Protection::READ_WRITE, source(PAGE))?;
            let mut page = [0u8; CODE_BYTES as usize];
            page[..CODE.len()].copy_from_slice(CODE);
            page[ACTIONS as usize..][..4].copy_from_slice(&inner_pid(process.pid()).to_ne_bytes());
            // The handler's stack serves as memory for the calls' arguments meanwhile.
            let room = front + 3 * PAGE as u64;
            let (mut armed, mut left) = (Vec::new(), Vec::new());
            for signal in FATAL {
                let own = action(stopped, signal, room)?;
                page[ACTIONS as usize + signal as usize * 32..][..32].copy_from_slice(&own.bytes());
                if own.kills(reporter) { armed.push(signal) } else { left.push(signal) }
            }
            let code = stopped.map(Some(base), CODE_BYTES, Protection::READ_EXECUTE, Source::Bytes(&page))?;
            let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64 | SA_RESTORER;
            for signal in &armed {
                stopped.write(room, &Action([base, flags, base + RESTORER, 0]).bytes())?;
                stopped.call(libc::SYS_rt_sigaction, [*signal as u64, room, 0, 8, 0, 0])?;
            }
            let has_stack = give_stack(stopped, room)?;
            for region in [orders, rest, code] {
                stopped.leave(region)?;
            }
            shared.attach(process.pid());
            Ok(Attached { base, armed, left, has_stack })
        })
    }

    /// Takes the handlers out, those that the program has not replaced since, and the memory.
    pub fn leave(&self, process: &Process) -> Result<(), Error> {
        let front = self.base + CODE_BYTES;
        let room = front + 3 * PAGE as u64;
        process.while_stopped(|stopped| {
            for signal in &self.armed {
                if action(stopped, *signal, room)?.0[0] == self.base {
                    let own = self.base + ACTIONS + *signal as u64 * 32;
                    stopped.call(libc::SYS_rt_sigaction, [*signal as u64, own, 0, 8, 0, 0])?;
                }
            }
            let pid = stopped.pid();
            if self.has_stack && stack(stopped, room)?.0 == room {
                stopped.write(room, &stack_bytes(0, libc::SS_DISABLE, 0))?;
                stopped.thread(pid)?.call(libc::SYS_sigaltstack, [room, 0, 0, 0, 0, 0])?;
            }
            stopped.unmap(Region { start: self.base, len: CODE_BYTES })?;
            // The shared memory, and that for copies of pages.
            for entry in stopped.mappings()?.iter().filter(|entry| entry.name.starts_with("/memfd:orbit-keep")) {
                stopped.unmap(Region { start: entry.start, len: entry.end - entry.start })?;
            }
            Ok(())
        })
    }
}

/// Takes out what a keeper has left that was killed. An error if one still keeps the program, or
/// has started it.
fn clear_away(process: &Process) -> Result<(), Error> {
    let mappings = process.mappings()?;
    let Some(orders) = mappings.iter().find(|entry| entry.name.starts_with("/memfd:orbit-keep (")) else {
        return Ok(());
    };
    let mut word = [0; 4];
    // Magic number and version stay at their place in all versions.
    process.read(orders.start + offset_of!(Orders, version) as u64, &mut word)?;
    if u32::from_ne_bytes(word) != VERSION {
        let why = "is or was kept by another version of orbit, which alone can take out what it put in";
        return Err(Error::Unkept(format!("process {} {why}", process.pid())));
    }
    process.read(orders.start + offset_of!(Orders, keeper) as u64, &mut word)?;
    let keeper = u32::from_ne_bytes(word);
    if keeper != 0 && keeper & libc::FUTEX_OWNER_DIED == 0 {
        return Err(Error::Unkept(format!("process {} is kept already: orbit keep --status", process.pid())));
    }
    let base = orders.start.saturating_sub(CODE_BYTES);
    let mut code = vec![0; CODE.len()];
    if process.read(base, &mut code).is_err() || code != CODE {
        let why = "was started by a keeper that has ended; its library cannot be taken out";
        return Err(Error::Unkept(format!("process {} {why}", process.pid())));
    }
    Attached { base, armed: FATAL.into(), left: Vec::new(), has_stack: true }.leave(process)
}

/// The action that the kernel has for a signal; `room`: 32 bytes in the program.
fn action(stopped: &mut Stopped<'_>, signal: i32, room: u64) -> Result<Action, Error> {
    stopped.call(libc::SYS_rt_sigaction, [signal as u64, 0, room, 8, 0, 0])?;
    let mut bytes = [0; 32];
    stopped.read(room, &mut bytes)?;
    Ok(Action::from_bytes(bytes))
}

fn stack_bytes(start: u64, flags: i32, len: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&start.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[16..].copy_from_slice(&len.to_ne_bytes());
    bytes
}

/// Address and flags of the first thread's signal stack.
fn stack(stopped: &mut Stopped<'_>, room: u64) -> Result<(u64, i32), Error> {
    let pid = stopped.pid();
    stopped.thread(pid)?.call(libc::SYS_sigaltstack, [0, room, 0, 0, 0, 0])?;
    let mut bytes = [0; 24];
    stopped.read(room, &mut bytes)?;
    let start = u64::from_ne_bytes(bytes[..8].try_into().unwrap_or_default());
    Ok((start, i32::from_ne_bytes(bytes[8..12].try_into().unwrap_or_default())))
}

/// Gives the first thread a signal stack if it has none: then a stack overflow is caught.
fn give_stack(stopped: &mut Stopped<'_>, room: u64) -> Result<bool, Error> {
    if stack(stopped, room)?.1 & libc::SS_DISABLE == 0 {
        return Ok(false);
    }
    stopped.write(room, &stack_bytes(room, 0, MAIN_STACK_BYTES as u64))?;
    let pid = stopped.pid();
    stopped.thread(pid)?.call(libc::SYS_sigaltstack, [room, 0, 0, 0, 0, 0])?;
    Ok(true)
}
