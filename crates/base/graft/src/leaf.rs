//! Machine code of ours in a stopped program: a *leaf*, which works in the thread that makes the
//! calls while the tracer does something else.
//!
//! A leaf keeps the rule of [`crate::call`]: whatever instruction it stands at, the thread could
//! continue alone. It ends in the stub, which makes a call that does nothing; there the tracer
//! stops it.

use crate::call::INTERRUPT_LIMIT;
use crate::seize::pause;
use crate::thread::CODE_64;
use crate::{Error, Stopped};
use orbit_linux::ptrace::{self, state, state::Stop};
use std::time::{Duration, Instant};

/// How long a leaf may take before it is given up.
const LEAF_LIMIT: Duration = Duration::from_secs(2);
/// The direction flag: with it string instructions go backwards.
const BACKWARDS: u64 = 1 << 10;
/// Faults of a leaf, which are not the program's.
const FAULTS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Where a leaf begins and what it is given.
///
/// The code uses no stack, changes no flags, and no registers but `rax`, `rcx`, `rdx`, `rsi`, `rdi`
/// and `r8` to `r11`. It ends with `rax` = `SYS_close`, `rdi` = -1 and a jump to the address that
/// it finds in `r8`.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// Address of its first instruction.
    pub address: u64,
    /// First argument.
    pub rdi: u64,
    /// Second argument.
    pub rdx: u64,
    /// Third argument.
    pub r9: u64,
}

/// How long code of ours may take in a thread before it is interrupted.
pub(crate) struct Patience {
    since: Instant,
    limit: Duration,
    /// The thread was interrupted: its next trap is for that.
    pub is_over: bool,
}

impl Patience {
    /// From now on.
    pub fn of(limit: Duration) -> Patience {
        Patience { since: Instant::now(), limit, is_over: false }
    }
}

/// Whether the signal that the thread has stopped at is a fault that it ran into. One that was sent
/// is passed on like any other.
pub(crate) fn ran_into_a_fault(tid: i32) -> bool {
    ptrace::signal(tid).is_ok_and(|info| info.si_code > 0)
}

impl Stopped<'_> {
    /// Runs a leaf in the program, and `meanwhile` in this thread. Returns whether the leaf came to
    /// its end: if not, it has run into a fault, or could not be started, and the program is as
    /// before.
    ///
    /// # Errors
    /// Those of [`Stopped::call`].
    pub fn run_leaf(&mut self, leaf: Leaf, meanwhile: impl FnOnce()) -> Result<bool, Error> {
        let tid = self.caller()?;
        self.go_away(tid)?;
        let held = self.threads.get(&tid).ok_or(Error::Gone { id: tid })?;
        let stub = self.away.iter().find(|away| away.tid == tid).ok_or(Error::Gone { id: tid })?;
        let (mut registers, mask, home) = (held.registers, stub.mask, stub.stub);
        if registers.eflags & BACKWARDS != 0 || registers.cs != CODE_64 {
            meanwhile();
            return Ok(false);
        }
        (registers.rip, registers.rax, registers.orig_rax) = (leaf.address, 0, u64::MAX);
        (registers.rdi, registers.rdx, registers.r8, registers.r9) = (leaf.rdi, leaf.rdx, home, leaf.r9);
        // The kernel would take the program's handler away for a fault that is blocked.
        self.open_while_away(tid, mask, &FAULTS)?;
        ptrace::set_registers(tid, &registers).map_err(|e| self.lost(tid, "setting registers of", e))?;
        ptrace::go_to_call(tid, 0).map_err(|e| self.lost(tid, "running code in", e))?;
        meanwhile();
        let ended = self.end_of_leaf(tid);
        self.stand_before(tid, libc::SYS_close, [u64::MAX, 0, 0, 0, 0, 0])?;
        self.open_while_away(tid, mask, &[])?;
        ended
    }

    /// Waits for the next stop of a thread that runs code of ours. One that takes too long is
    /// interrupted, once; one that does not stop after that is left alone.
    ///
    /// # Errors
    /// [`Error::Gone`] when it has ended, [`Error::NotStopped`] within [`INTERRUPT_LIMIT`] after it
    /// was interrupted, [`Error::Io`].
    pub(crate) fn next_stop(&mut self, tid: i32, patience: &mut Patience) -> Result<Stop, Error> {
        loop {
            match state::next_stop(self.pid, tid).map_err(|e| self.lost(tid, "waiting for", e))? {
                Stop::None => {
                    let waited = patience.since.elapsed();
                    if waited > patience.limit && !std::mem::replace(&mut patience.is_over, true) {
                        // Fails only for a thread that was killed.
                        let _ = ptrace::interrupt(tid);
                    }
                    if waited > patience.limit + INTERRUPT_LIMIT {
                        self.leave_alone(tid);
                        let why = "it runs code of ours and took no interrupt".to_owned();
                        return Err(Error::NotStopped { tid, waited, why });
                    }
                    pause(waited);
                }
                Stop::Ended => {
                    self.forget(tid);
                    return Err(Error::Gone { id: tid });
                }
                stop => return Ok(stop),
            }
        }
    }

    /// Waits until the thread makes the call that ends the leaf.
    fn end_of_leaf(&mut self, tid: i32) -> Result<bool, Error> {
        let mut patience = Patience::of(LEAF_LIMIT);
        let mut entered = false;
        loop {
            match self.next_stop(tid, &mut patience)? {
                Stop::Call if !std::mem::replace(&mut entered, true) => {}
                Stop::Call => return Ok(true),
                Stop::Signal(signal) if FAULTS.contains(&signal) => {
                    if ran_into_a_fault(tid) {
                        return Ok(false);
                    }
                    self.signal_while_away(tid, signal);
                }
                Stop::Signal(signal) => {
                    let signal = self.signal_while_away(tid, signal);
                    ptrace::go_to_call(tid, signal).map_err(|e| self.lost(tid, "running code in", e))?;
                    continue;
                }
                Stop::Trap(_) if patience.is_over => return Ok(false),
                Stop::Trap(_) | Stop::Event(_) | Stop::None | Stop::Ended => {}
            }
            ptrace::go_to_call(tid, 0).map_err(|e| self.lost(tid, "running code in", e))?;
        }
    }
}
