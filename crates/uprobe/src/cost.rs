//! What a hit costs here, by probing two functions of this process.
//!
//! Promises: CPU time with probes less the time without, per hit, the least of several rounds: what other programs do
//! meanwhile only adds. The time in the kernel is the calling thread's own, so it is counted.

use crate::Error;
use crate::code::{Place, Shape};
use crate::prober::Prober;
use std::arch::global_asm;
use std::path::{Path, PathBuf};

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
const HITS: u64 = 1000;
const ROUNDS: usize = 7;

/// Nanoseconds of CPU that a hit costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// At an instruction that the kernel runs itself.
    pub emulated: f64,
    /// At any other, which it steps.
    pub stepped: f64,
    /// At a plain return: the probe carries it out where the kernel lets it write registers (7.3 does, 6.18 does not), else the kernel steps it.
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

    /// The cost of an exit, in the mean of all exits, ns.
    pub fn exit(&self, shape: &Shape) -> f64 {
        shape.exits.iter().map(|e| self.at(*e)).sum::<f64>() / shape.exits.len().max(1) as f64
    }
}

pub(crate) fn measure(prober: &mut Prober) -> Result<Costs, Error> {
    let mut one = |function: unsafe extern "C" fn(), entry: Place, exits: Vec<Place>| {
        let (file, offset) = place(function as usize as u64)
            .ok_or_else(|| Error::Failed("this program's own file is not in its memory map".into()))?;
        let shape = Shape { address: function as usize as u64, entry, exits, ..Shape::default() };
        let plain = least(function);
        let probes = prober.attach(std::process::id() as i32, &file, offset, &shape)?;
        let probed = least(function);
        // Taking them away takes long; nobody need wait for it.
        probes.away();
        Ok((probed - plain).max(1.0))
    };
    let begin = Place { emulated: true, ..Place::default() };
    let emulated = one(orbit_uprobe_emulated, begin, Vec::new())?;
    let stepped = one(orbit_uprobe_stepped, Place::default(), Vec::new())?;
    let end = Place { offset: 1, returns: true, ..Place::default() };
    let both = one(orbit_uprobe_returned, begin, vec![end])?;
    Ok(Costs { emulated, stepped, returned: (both - emulated).max(1.0) })
}

/// Nanoseconds of CPU a call, the least of several rounds.
fn least(function: unsafe extern "C" fn()) -> f64 {
    let round = || {
        let start = cpu();
        for _ in 0..HITS {
            // SAFETY: these functions take nothing, change nothing and return.
            unsafe { function() };
        }
        (cpu() - start) as f64 / HITS as f64
    };
    (0..ROUNDS).map(|_| round()).fold(f64::MAX, f64::min)
}

/// CPU time of the calling thread, ns.
fn cpu() -> u64 {
    // SAFETY: all-zero bytes are a valid timespec.
    let mut t: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `t` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The file that holds an address of this process, and the offset in it.
fn place(address: u64) -> Option<(PathBuf, u64)> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    // Files may have any bytes for names.
    String::from_utf8_lossy(&maps).lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let offset = number(fields.nth(1)?)?;
        // By the mapping, not by name: the file may have been replaced since.
        let link = format!("/proc/self/map_files/{start:x}-{end:x}");
        (start..end).contains(&address).then(|| (Path::new(&link).to_owned(), address - start + offset))
    })
}
