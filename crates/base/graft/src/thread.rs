//! One stopped thread: its registers, and what it was interrupted in.
//!
//! A thread of a stopped program is *at home*: stopped where it was, in the kernel's signal
//! handling, so that the kernel still decides about an interrupted call. Or it is *away*: in a
//! stub, for an injected call.

use crate::denial::explain;
use crate::restart::{self, Interrupted};
use crate::stub::Makes;
use crate::{Error, Stopped};
use libc::user_regs_struct;
use orbit_linux::ptrace::{self, state};

/// What is known of a stopped thread.
#[derive(Debug)]
pub(crate) struct Held {
    /// The registers to continue with; true: they differ from those that the thread has.
    pub(crate) registers: user_regs_struct,
    pub(crate) changed: bool,
    /// The stop has ended its call early.
    pub(crate) cut_short: bool,
    /// Signals that came while it was away and could not be kept blocked.
    pub(crate) owed: Vec<i32>,
}

/// All registers of a thread.
#[derive(Clone, Debug)]
pub struct Regs {
    /// General registers. In a call that was interrupted `orig_rax` is its number and `rax` how it
    /// continues; see [`Regs::settled`].
    pub general: user_regs_struct,
    /// Vector and floating-point registers, as `XSAVE` lays them out on this processor. Empty: none
    /// (left as they are).
    pub vectors: Vec<u8>,
}

impl Regs {
    /// Returns registers of the same state from which the thread can continue at any time: an
    /// interrupted call is about to be made again. (A call with
    /// [`Restart::RestOfTime`](crate::Restart) can be continued only while the thread makes no
    /// other.)
    #[must_use]
    pub fn settled(&self) -> Regs {
        Regs { general: restart::settled(&self.general, false), vectors: self.vectors.clone() }
    }
}

/// A stopped thread.
#[derive(Debug)]
pub struct Thread<'s, 'p> {
    pub(crate) stopped: &'s mut Stopped<'p>,
    pub(crate) tid: i32,
}

impl Thread<'_, '_> {
    /// The thread's id.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    fn held(&mut self) -> Result<&mut Held, Error> {
        let tid = self.tid;
        self.stopped.threads.get_mut(&tid).ok_or(Error::Gone { id: tid })
    }

    /// Returns the general registers that it continues with. Costs no system call.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn general(&mut self) -> Result<user_regs_struct, Error> {
        Ok(self.held()?.registers)
    }

    /// Sets the general registers that it continues with, when it is released.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Unsuitable`] for a code segment that is not that of 64-bit code.
    pub fn set_general(&mut self, registers: &user_regs_struct) -> Result<(), Error> {
        let tid = self.tid;
        if registers.cs != CODE_64 {
            return Err(Error::Unsuitable { id: tid, why: format!("code segment {:#x} is not 64-bit", registers.cs) });
        }
        let held = self.held()?;
        (held.registers, held.changed) = (*registers, true);
        self.stopped.write_stub(tid, Makes::Nothing)
    }

    /// Returns all registers.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Io`].
    pub fn regs(&mut self) -> Result<Regs, Error> {
        let general = self.general()?;
        let vectors = state::vectors(self.tid).map_err(|e| self.failed("reading vector registers of", e))?;
        Ok(Regs { general, vectors })
    }

    /// Sets all registers.
    ///
    /// # Errors
    /// As [`Thread::set_general`]; [`Error::Io`] for vectors of another processor's layout.
    pub fn set_regs(&mut self, regs: &Regs) -> Result<(), Error> {
        self.set_general(&regs.general)?;
        if regs.vectors.is_empty() {
            return Ok(());
        }
        state::set_vectors(self.tid, &regs.vectors).map_err(|e| self.failed("setting vector registers of", e))
    }

    /// Returns its blocked signals, bit 0 for signal 1.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Io`].
    pub fn signal_mask(&mut self) -> Result<u64, Error> {
        match self.stopped.away.iter().find(|away| away.tid == self.tid) {
            Some(away) => Ok(away.mask),
            None => self.stopped.mask_of(self.tid),
        }
    }

    /// Sets its blocked signals.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Io`].
    pub fn set_signal_mask(&mut self, mask: u64) -> Result<(), Error> {
        if let Some(away) = self.stopped.away.iter_mut().find(|away| away.tid == self.tid) {
            away.mask = mask;
            return self.stopped.write_stub(self.tid, Makes::Nothing);
        }
        state::set_signal_mask(self.tid, mask).map_err(|e| self.failed("setting the signal mask of", e))
    }

    /// The call that it was interrupted in and that continues when it is released.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn interrupted(&mut self) -> Result<Option<Interrupted>, Error> {
        Ok(restart::interrupted(&self.held()?.registers))
    }

    /// Returns its registration for restartable sequences.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Io`] before Linux 5.13.
    pub fn rseq(&mut self) -> Result<Option<state::Rseq>, Error> {
        state::rseq(self.tid).map_err(|e| self.failed("reading the rseq registration of", e))
    }

    /// Has its system calls dispatched to itself from when it is released on, or (`None`) not any
    /// more. While they are, no calls can be run in it.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Io`] before Linux 6.4.
    pub fn set_dispatch(&mut self, dispatch: Option<state::Dispatch>) -> Result<(), Error> {
        state::set_dispatch(self.tid, dispatch).map_err(|e| self.failed("dispatching the calls of", e))
    }

    /// Runs a system call in this thread: see [`Stopped::call`].
    ///
    /// # Errors
    /// As there.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        self.stopped.call_in(self.tid, number, arguments)
    }

    fn failed(&self, what: &'static str, source: std::io::Error) -> Error {
        explain(self.stopped.pid(), self.tid, what, source)
    }
}

/// The code segment of 64-bit code.
pub(crate) const CODE_64: u64 = 0x33;

impl Held {
    /// Reads the registers of a thread that has just stopped at home. A call that the stop has cut
    /// short is made again.
    pub(crate) fn read(pid: i32, tid: i32) -> Result<Held, Error> {
        let failed = |e| explain(pid, tid, "reading registers of", e);
        let mut registers = ptrace::registers(tid).map_err(failed)?;
        let cut_short = ptrace::have_begin_again(&mut registers);
        if cut_short {
            // At once: until then the call would fail with EINTR, should this process be killed.
            ptrace::set_registers(tid, &registers).map_err(failed)?;
        }
        Ok(Held { registers, changed: false, cut_short, owed: Vec::new() })
    }
}
