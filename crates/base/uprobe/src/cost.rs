//! What a hit costs here, by probing functions of a child that is this process' copy.
//!
//! Promises: CPU time with probes less the time without, per hit, the least of several rounds: what
//! other programs do meanwhile only adds. The time in the kernel is the calling thread's own, so it
//! is counted. This process itself is never probed: the kernel scans each process that once
//! was when it takes a probe of a file away that the process maps too (libc), and cannot while
//! whoever takes it away is being killed: it then keeps the probe for good and says so in its log.

use crate::code::{Place, Shape};
use crate::prober::Prober;
use crate::table::Hits;
use crate::{CodeFile, Error, Target};
use orbit_linux::process::{self, RawChild};
use orbit_linux::signals::Blocked;
use orbit_linux::{clock, pidfd, socket, stream};
use std::arch::global_asm;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

// Functions that do nothing, one for each way in which the probed instruction is run.
global_asm!(
    ".p2align 6",
    ".globl orbit_uprobe_emulated",
    ".type orbit_uprobe_emulated, @function",
    "orbit_uprobe_emulated:",
    "push rbp",
    "pop rbp",
    "ret",
    ".size orbit_uprobe_emulated, . - orbit_uprobe_emulated",
    ".globl orbit_uprobe_stepped",
    ".type orbit_uprobe_stepped, @function",
    "orbit_uprobe_stepped:",
    "ret",
    ".size orbit_uprobe_stepped, . - orbit_uprobe_stepped",
    ".globl orbit_uprobe_returned",
    ".type orbit_uprobe_returned, @function",
    "orbit_uprobe_returned:",
    "nop",
    "ret",
    ".size orbit_uprobe_returned, . - orbit_uprobe_returned",
);

unsafe extern "C" {
    fn orbit_uprobe_emulated();
    fn orbit_uprobe_stepped();
    fn orbit_uprobe_returned();
}

/// Hits a round.
const HITS_PER_ROUND: u64 = 1000;
const ROUNDS: usize = 7;

/// Nanoseconds of CPU that a hit costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// At an instruction that the kernel runs itself.
    pub emulated: f64,
    /// At any other, which it steps.
    pub stepped: f64,
    /// At a plain return: the probe carries it out where the kernel lets it write registers (7.3
    /// does, 6.18 does not), else the kernel steps it.
    pub returned: f64,
}

impl Costs {
    /// The cost of a hit at this place, ns.
    pub fn at(&self, place: Place) -> f64 {
        match place {
            Place { emulated: true, .. } => self.emulated,
            Place { returns: true, .. } => self.returned,
            _ => self.stepped,
        }
    }

    /// What the hits of a function's probes cost, ns.
    pub fn of(&self, shape: &Shape, hits: Hits) -> f64 {
        let dear: Vec<f64> = shape.ends.iter().filter(|e| !e.emulated).map(|e| self.at(*e)).collect();
        let dear = dear.iter().sum::<f64>() / dear.len().max(1) as f64;
        let cheap = (hits.exits + hits.passes).saturating_sub(hits.stepped);
        hits.entries as f64 * self.at(shape.entry) + cheap as f64 * self.emulated + hits.stepped as f64 * dear
    }
}

pub(crate) fn measure(prober: &mut Prober) -> Result<Costs, Error> {
    let subject =
        Subject::begin().map_err(|e| Error::Failed(format!("no process to measure what a probe costs: {e}")))?;
    let mut all = Vec::new();
    let mut one = |n: usize, entry: Place, ends: Vec<Place>| {
        let address = FUNCTIONS[n] as usize as u64;
        let (file, offset) =
            place(address).ok_or_else(|| Error::Failed("this program's own file is not in its memory map".into()))?;
        let shape = Shape { address, entry, ends, ..Shape::default() };
        let plain = subject.least(n)?;
        let target = Target { pid: subject.pid, file, start: offset, shape, callers: false };
        let slot = prober.slot()?;
        all.push(prober.attach(slot, &target, &[], true)?.0);
        Ok::<f64, Error>((subject.least(n)? - plain).max(1.0))
    };
    let begin = Place { emulated: true, ..Place::default() };
    let emulated = one(0, begin, Vec::new())?;
    let stepped = one(1, Place::default(), Vec::new())?;
    let end = Place { offset: 1, returns: true, ..Place::default() };
    let both = one(2, begin, vec![end])?;
    // Its memory goes first: then there is nothing left to restore.
    drop(subject);
    drop(all);
    Ok(Costs { emulated, stepped, returned: (both - emulated).max(1.0) })
}

/// What the subject calls, by number.
const FUNCTIONS: [unsafe extern "C" fn(); 3] = [orbit_uprobe_emulated, orbit_uprobe_stepped, orbit_uprobe_returned];

/// The child whose functions are probed; it ends when this is dropped, and with the thread that
/// made it.
struct Subject {
    pid: i32,
    process: OwnedFd,
    asks: OwnedFd,
}

impl Subject {
    fn begin() -> io::Result<Subject> {
        let (asks, answers) = socket::pair()?;
        let blocked = Blocked::all();
        // SAFETY: the child makes system calls only, and does not return from `answer`.
        let child = unsafe { process::raw_fork(0) }?;
        let Some(RawChild { pid, pidfd }) = child else { answer(answers.as_fd()) };
        drop(blocked);
        // Where the kernel half could be loaded (cookies of probes, Linux 5.15) a fork gives one.
        // Without it the child ends with its socket.
        let process = pidfd.ok_or(io::ErrorKind::Unsupported)?;
        Ok(Subject { pid, process, asks })
    }

    /// Nanoseconds of CPU that a call of this function costs it.
    fn least(&self, n: usize) -> Result<f64, Error> {
        let gone = |e: io::Error| Error::Failed(format!("the process to measure what a probe costs: {e}"));
        socket::send(self.asks.as_fd(), &[n as u8], &[]).map_err(gone)?;
        let mut bytes = [0; size_of::<f64>()];
        let got = socket::receive(self.asks.as_fd(), &mut bytes, &mut Vec::new(), false).map_err(gone)?;
        if got != bytes.len() {
            return Err(gone(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(f64::from_ne_bytes(bytes))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // One that has ended already only is to be reaped.
        let _ = pidfd::send_signal(self.process.as_fd(), libc::SIGKILL);
        let _ = pidfd::wait(self.process.as_fd(), false);
    }
}

/// What the child does, with all signals blocked: calls functions by number and answers what that
/// cost, until nobody asks.
fn answer(asks: BorrowedFd<'_>) -> ! {
    if process::set_parent_death_signal(libc::SIGKILL).is_err() {
        process::end(1);
    }
    process::close_all_but(&[asks.as_raw_fd()]);
    loop {
        let mut n = [0u8];
        let asked = matches!(stream::read(asks, &mut n), Ok(1));
        let Some(function) = FUNCTIONS.get(usize::from(n[0])).filter(|_| asked) else { process::end(0) };
        // SIGPIPE is blocked, as all signals are.
        let _ = stream::write(asks, &least(*function).to_ne_bytes());
    }
}

/// Nanoseconds of CPU a call, the least of several rounds. Async-signal-safe.
fn least(function: unsafe extern "C" fn()) -> f64 {
    let round = || {
        let start = clock::thread_cpu_ns();
        for _ in 0..HITS_PER_ROUND {
            // SAFETY: these functions take nothing, change nothing and return.
            unsafe { function() };
        }
        (clock::thread_cpu_ns() - start) as f64 / HITS_PER_ROUND as f64
    };
    (0..ROUNDS).map(|_| round()).fold(f64::MAX, f64::min)
}

/// The file that holds an address of this process, and the offset in it.
fn place(address: u64) -> Option<(Arc<CodeFile>, u64)> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    // Files may have any bytes for names.
    String::from_utf8_lossy(&maps).lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let offset = number(fields.nth(1)?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let identity = (libc::makedev(number(major)? as u32, number(minor)? as u32), fields.next()?.parse().ok()?);
        let name = line.split_ascii_whitespace().nth(5).unwrap_or_default();
        // By the mapping where there is no other way: such a link may be followed by few users
        // (CAP_CHECKPOINT_RESTORE).
        let mapping = format!("/proc/self/map_files/{start:x}-{end:x}");
        let names = [name, "/proc/self/exe", &mapping];
        let file = || names.iter().find_map(|name| CodeFile::open(name.as_ref(), identity).ok());
        if (start..end).contains(&address) { Some((file()?.into(), address - start + offset)) } else { None }
    })
}
