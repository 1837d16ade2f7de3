//! System calls in a stopped program.
//!
//! A thread goes *away* into a stub ([`crate::stub`]), makes calls there one after the other, and
//! comes *home* at the end. At each moment it stands where it could continue alone: the stub is
//! written before its registers point there, the signal mask changes only while they do, and they
//! are set back before the stub goes. The first thread that goes away is the *anchor*: its stub
//! undoes everything, so it stays away until all is undone. If another one is to make a call it has
//! a second stub.
//!
//! While it is away its signals wait, blocked: all but `SIGKILL`, `SIGSTOP`, and `SIGTRAP` and
//! `SIGSYS`, which the kernel may force: forcing a blocked signal would reset the program's
//! handler.

use crate::denial::explain;
use crate::restart::Restart;
use crate::seize::{self, onward, pause};
use crate::stopped::Away;
use crate::stub::{self, Makes, Undo};
use crate::thread::CODE_64;
use crate::{Error, Stopped};
use orbit_linux::ptrace::{self, state, state::Stop};
use orbit_linux::signals;
use orbit_linux::status::Status;
use orbit_linux::trial;
use std::time::{Duration, Instant};

/// How long an injected call may take. Then it is interrupted.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// How long after that a thread may take to return, or to stop.
pub(crate) const INTERRUPT_LIMIT: Duration = Duration::from_secs(1);

/// The signals that stay open while a thread is away.
const OPEN: [i32; 2] = [libc::SIGTRAP, libc::SIGSYS];

/// Calls that make or end a thread or process, or change what the stub stands on: they need more
/// than an injected call.
const UNSUITABLE: [i64; 9] = [
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
];

impl Stopped<'_> {
    /// Runs a system call in the program and returns its result. Which thread makes it is not
    /// defined: the first one that can.
    ///
    /// It is meant for calls that return at once; one that takes ten seconds is interrupted.
    ///
    /// # Errors
    /// [`Error::Call`] with the error of the call itself. [`Error::Unsuitable`] for calls that make
    /// or end a thread or process, and for a program from which no call can be made (it has no
    /// vdso, or dispatches its calls to itself); [`Error::Filtered`]; [`Error::NotReturned`];
    /// [`Error::Gone`], [`Error::Io`].
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        let tid = self.caller()?;
        self.call_in(tid, number, arguments)
    }

    pub(crate) fn call_in(&mut self, tid: i32, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        if UNSUITABLE.contains(&number) {
            let why = format!("call {number} makes or ends a thread or process, and cannot be injected as it is");
            return Err(Error::Unsuitable { id: tid, why });
        }
        self.call_any(tid, number, arguments)
    }

    /// As [`Stopped::call_in`], for any call.
    pub(crate) fn call_any(&mut self, tid: i32, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        self.go_away(tid)?;
        self.passes(tid, number, arguments)?;
        self.stand_before(tid, number, arguments)?;
        self.run(tid, number)
    }

    /// A call that makes something, which is undone at the end unless it is struck off.
    pub(crate) fn call_making(&mut self, number: i64, arguments: [u64; 6], makes: Makes) -> Result<u64, Error> {
        let tid = self.caller()?;
        self.go_away(tid)?;
        self.passes(tid, number, arguments)?;
        self.has_room_for(1)?;
        // The stub is to undo what the call makes: it must not take the result of an earlier one
        // for that. So a call that fails comes first.
        self.stand_before(tid, libc::SYS_close, [u64::MAX, 0, 0, 0, 0, 0])?;
        self.write_stub(tid, makes)?;
        self.stand_before(tid, number, arguments)?;
        let result = self.run(tid, number);
        if let Ok(result) = result {
            match makes {
                Makes::Nothing => {}
                Makes::Mapping { len } => self.undo.push(Undo::Unmap { start: result, len }),
                Makes::Descriptor => self.undo.push(Undo::Close { number: result as i32 }),
            }
        }
        self.write_stub(tid, Makes::Nothing)?;
        result
    }

    /// Undoes something now.
    pub(crate) fn undo_now(&mut self, undo: Undo) -> Result<(), Error> {
        let (number, arguments) = match undo {
            Undo::Unmap { start, len } => (libc::SYS_munmap, [start, len, 0, 0, 0, 0]),
            Undo::Close { number } => (libc::SYS_close, [number as u64, 0, 0, 0, 0, 0]),
            Undo::CloseAt { address } => {
                let mut number = [0u8; 4];
                self.read(address, &mut number)?;
                match i32::from_ne_bytes(number) {
                    -1 => return self.strike(undo),
                    number => (libc::SYS_close, [number as u64, 0, 0, 0, 0, 0]),
                }
            }
        };
        let tid = self.caller()?;
        self.go_away(tid)?;
        self.stand_before(tid, number, arguments)?;
        // From here on the call is made, whatever happens to this process; so the stub has nothing
        // more to do about it.
        self.strike(undo)?;
        self.run(tid, number).map(drop)
    }

    /// The thread that makes calls where it does not matter which.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if none runs 64-bit code.
    pub fn caller(&self) -> Result<i32, Error> {
        let fit = |tid: &i32| self.threads.get(tid).is_some_and(|held| held.registers.cs == CODE_64);
        let tid = match self.away.first() {
            Some(anchor) => Some(anchor.tid),
            None => [self.pid].iter().chain(self.threads.keys()).copied().find(fit),
        };
        tid.ok_or_else(|| Error::Unsuitable { id: self.pid, why: "none of its threads runs 64-bit code".into() })
    }

    /// Sets the registers of the thread that is away, so that it makes this call next.
    pub(crate) fn stand_before(&mut self, tid: i32, number: i64, arguments: [u64; 6]) -> Result<(), Error> {
        let held = self.threads.get(&tid).ok_or(Error::Gone { id: tid })?;
        let mut registers = held.registers;
        let [a, b, c, d, e, f] = arguments;
        let entry = self.away.iter().find(|away| away.tid == tid).ok_or(Error::Gone { id: tid })?.stub;
        (registers.rip, registers.rax, registers.orig_rax) = (entry, number as u64, u64::MAX);
        (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
        (registers.r10, registers.r8, registers.r9) = (d, e, f);
        ptrace::set_registers(tid, &registers).map_err(|e| self.lost(tid, "setting registers of", e))
    }

    /// Has a thread go away, if it is not away.
    pub(crate) fn go_away(&mut self, tid: i32) -> Result<(), Error> {
        if self.away.iter().any(|away| away.tid == tid) {
            return Ok(());
        }
        if let Some(visitor) = self.away.get(1) {
            self.come_home(visitor.tid)?;
        }
        self.is_judged |= self.check(tid)?;
        let room = match self.room {
            Some(room) => room,
            None => {
                let at: Vec<_> = self.threads.values().map(|held| (held.registers.rip, held.registers.rsp)).collect();
                *self.room.insert(stub::room(self.process, &self.mappings()?, &at)?)
            }
        };
        let is_anchor = self.away.is_empty();
        let stub = if is_anchor { room.anchor() } else { room.visitor() };
        let mask = self.mask_of(tid)?;
        self.leave_sequence(tid)?;
        let held = self.threads.get(&tid).ok_or(Error::Gone { id: tid })?;
        let undo = if is_anchor { &self.undo[..] } else { &[] };
        self.write(stub, &self.stub_code(held, mask, Makes::Nothing, undo))?;
        self.away.push(Away { tid, stub, mask });
        // A call that does nothing, should this process be killed before the one that is meant is
        // prepared.
        self.stand_before(tid, libc::SYS_close, [u64::MAX, 0, 0, 0, 0, 0])?;
        self.open_while_away(tid, mask, &[])
    }

    /// Blocks all signals of a thread that is away, whose own mask is `mask`, but [`OPEN`] and
    /// `more`.
    pub(crate) fn open_while_away(&mut self, tid: i32, mask: u64, more: &[i32]) -> Result<(), Error> {
        let bits = |signals: &[i32]| signals.iter().fold(0u64, |open, signal| open | 1 << (signal - 1));
        let blocked = (mask | !bits(&OPEN)) & !bits(more);
        state::set_signal_mask(tid, blocked).map_err(|e| self.lost(tid, "setting the signal mask of", e))
    }

    /// Whether a call may be made from the stub: where filters judge it, one that passes.
    pub(crate) fn passes(&self, tid: i32, number: i64, arguments: [u64; 6]) -> Result<(), Error> {
        if !self.is_judged || trial::passes(number, arguments) {
            return Ok(());
        }
        let why = format!("a seccomp filter forbids call {number} there: allow it, or give the caller CAP_SYS_ADMIN");
        Err(Error::Filtered { tid, why })
    }

    /// Whether a call from the stub would be made at all, and not end the program. True if filters
    /// judge it, which are those of this process.
    fn check(&self, tid: i32) -> Result<bool, Error> {
        let held = self.threads.get(&tid).ok_or(Error::Gone { id: tid })?;
        let unsuitable = |why: String| Err(Error::Unsuitable { id: tid, why });
        if held.registers.cs != CODE_64 {
            return unsuitable(format!("it runs 32-bit code (code segment {:#x})", held.registers.cs));
        }
        if state::dispatches_calls(tid) {
            return unsuitable("its system calls are dispatched to itself (PR_SET_SYSCALL_USER_DISPATCH)".into());
        }
        let status = Status::of_thread(self.pid, tid).unwrap_or_default();
        if status.field("Seccomp").is_some_and(|mode| mode != "0") {
            let options = ptrace::CALLS_MARKED | ptrace::CLONES | state::SUSPEND_SECCOMP;
            let Err(error) = state::set_options(tid, options) else { return Ok(false) };
            // What the stub itself does at its end.
            let [mask, close, unmap] = [libc::SYS_rt_sigprocmask, libc::SYS_close, libc::SYS_munmap];
            let has_ours = trial::has_the_same_filters(self.pid, tid);
            if has_ours && [mask, close, unmap].into_iter().all(|number| trial::passes(number, [2, 8, 0, 0, 0, 0])) {
                return Ok(true);
            }
            return Err(Error::Filtered {
                tid,
                why: format!(
                    "a seccomp filter judges its calls, and suspending it failed ({error}): needs CAP_SYS_ADMIN and \
                     a caller without a filter, or a program that the caller has started and that has set no filter \
                     of its own"
                ),
            });
        }
        Ok(false)
    }

    /// If the thread is in a restartable sequence: the kernel aborts that for every thread that
    /// lost its CPU, as this one did, but could not see it from registers that point to the stub.
    fn leave_sequence(&mut self, tid: i32) -> Result<(), Error> {
        let Ok(Some(rseq)) = state::rseq(tid) else { return Ok(()) };
        let word = |address: u64| {
            let mut bytes = [0u8; 8];
            self.read(address, &mut bytes).map(|()| u64::from_ne_bytes(bytes))
        };
        // `struct rseq` has the address of the sequence after two words of 32 bits; the sequence
        // begins with two such words too.
        let Ok(sequence) = word(rseq.address + 8) else { return Ok(()) };
        if sequence == 0 {
            return Ok(());
        }
        let (start, len, abort) = (word(sequence + 8)?, word(sequence + 16)?, word(sequence + 24)?);
        let held = self.threads.get_mut(&tid).ok_or(Error::Gone { id: tid })?;
        if held.registers.rip.wrapping_sub(start) < len {
            (held.registers.rip, held.changed) = (abort, true);
            ptrace::set_registers(tid, &held.registers)
                .map_err(|e| explain(self.pid, tid, "setting registers of", e))?;
        }
        Ok(())
    }

    /// Runs the call that the thread stands before.
    fn run(&mut self, tid: i32, number: i64) -> Result<u64, Error> {
        match self.run_to_end(tid, number)? as i64 {
            errno @ -4095..0 => Err(Error::Call { number, errno: -errno as i32 }),
            result => Ok(result as u64),
        }
    }

    /// The same; returns what it left in `rax`.
    fn run_to_end(&mut self, tid: i32, number: i64) -> Result<u64, Error> {
        *self.seen.borrow_mut() = None;
        let since = Instant::now();
        let mut entered = false;
        let mut interrupted = false;
        ptrace::go_to_call(tid, 0).map_err(|e| self.lost(tid, "running a call in", e))?;
        loop {
            let stop = state::next_stop(self.pid, tid).map_err(|e| self.lost(tid, "waiting for", e))?;
            match stop {
                Stop::None => {
                    let waited = since.elapsed();
                    if waited > CALL_LIMIT && !std::mem::replace(&mut interrupted, true) {
                        // Fails only for a thread that was killed.
                        let _ = ptrace::interrupt(tid);
                    }
                    if waited > CALL_LIMIT + INTERRUPT_LIMIT {
                        self.leave_alone(tid);
                        return Err(Error::NotReturned { tid, number, waited });
                    }
                    pause(waited);
                    continue;
                }
                Stop::Ended => {
                    self.forget(tid);
                    return Err(Error::Gone { id: tid });
                }
                Stop::Call if !std::mem::replace(&mut entered, true) => {}
                Stop::Call => {
                    let result = ptrace::registers(tid).map_err(|e| self.lost(tid, "reading registers of", e))?.rax;
                    match Restart::of(result) {
                        None => return Ok(result),
                        Some(_) if interrupted => {
                            return Err(Error::NotReturned { tid, number, waited: since.elapsed() });
                        }
                        // The kernel makes it again.
                        Some(_) => entered = false,
                    }
                }
                Stop::Signal(signal) => {
                    let signal = self.signal_while_away(tid, signal);
                    ptrace::go_to_call(tid, signal).map_err(|e| self.lost(tid, "running a call in", e))?;
                    continue;
                }
                Stop::Trap(_) | Stop::Event(_) => {}
            }
            ptrace::go_to_call(tid, 0).map_err(|e| self.lost(tid, "running a call in", e))?;
        }
    }

    /// A thread that is away is about to get a signal; returns the one to pass on. Stops take
    /// effect, others wait until it is home.
    pub(crate) fn signal_while_away(&mut self, tid: i32, signal: i32) -> i32 {
        if matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
            return signal;
        }
        if let Some(held) = self.threads.get_mut(&tid) {
            held.owed.push(signal);
        }
        0
    }

    /// Brings a thread home, if it is away.
    pub(crate) fn come_home(&mut self, tid: i32) -> Result<(), Error> {
        let Some(at) = self.away.iter().position(|away| away.tid == tid) else { return Ok(()) };
        // From the end of a call to where the kernel would decide about it, without running an
        // instruction.
        onward(tid, 0);
        loop {
            match seize::next(self.pid, tid) {
                Ok(Stop::Trap(_)) => break,
                Ok(Stop::Ended) => {
                    self.forget(tid);
                    return Err(Error::Gone { id: tid });
                }
                Ok(Stop::Signal(signal)) => onward(tid, self.signal_while_away(tid, signal)),
                Ok(Stop::Call | Stop::Event(_) | Stop::None) => onward(tid, 0),
                Err(error) => {
                    self.leave_alone(tid);
                    return Err(error);
                }
            }
        }
        let away = self.away.remove(at);
        let Some(held) = self.threads.get_mut(&tid) else { return Ok(()) };
        held.changed = false;
        let registers = held.registers;
        state::set_signal_mask(tid, away.mask).map_err(|e| self.lost(tid, "setting the signal mask of", e))?;
        ptrace::set_registers(tid, &registers).map_err(|e| self.lost(tid, "setting registers of", e))
    }

    /// The thread is in its stub and does not stop: it gets no CPU, or its call does not return. It
    /// continues by itself: the rest of the stub undoes what is to be undone and leads it home once
    /// its tracer is gone. So the stub stays.
    pub(crate) fn leave_alone(&mut self, tid: i32) {
        let is_anchor = self.away.first().is_some_and(|anchor| anchor.tid == tid);
        if is_anchor {
            self.undo.clear();
        }
        self.keeps_room |= self.away.iter().any(|away| away.tid == tid);
        for signal in self.threads.get_mut(&tid).map(|held| std::mem::take(&mut held.owed)).unwrap_or_default() {
            // They wait, blocked, until it is home. A thread that was killed needs none.
            let _ = signals::send_to_thread(self.pid, tid, signal);
        }
        self.forget(tid);
    }

    /// The thread is not ours to release any more: it has ended, or is [left
    /// alone](Stopped::leave_alone).
    pub(crate) fn forget(&mut self, tid: i32) {
        self.threads.remove(&tid);
        self.away.retain(|away| away.tid != tid);
    }

    /// The error of a request about a thread that was stopped: if the kernel knows of no such
    /// thread, it was killed.
    pub(crate) fn lost(&mut self, tid: i32, what: &'static str, source: std::io::Error) -> Error {
        let error = explain(self.pid, tid, what, source);
        if let Error::Gone { .. } = error {
            self.forget(tid);
        }
        error
    }

    /// Notes what is to be undone when the program is released, or by the anchor's stub.
    pub(crate) fn note(&mut self, undo: Undo) -> Result<(), Error> {
        self.has_room_for(1)?;
        self.undo.push(undo);
        self.write_anchor()
    }

    /// What was noted is not to be undone any more.
    pub(crate) fn strike(&mut self, undo: Undo) -> Result<(), Error> {
        self.undo.retain(|noted| *noted != undo);
        self.write_anchor()
    }

    /// Whether so many more things can be undone.
    pub(crate) fn has_room_for(&self, more: usize) -> Result<(), Error> {
        let most = self.room.map_or(stub::MIN_UNDO, stub::Room::undo);
        if self.undo.len() + more <= most {
            return Ok(());
        }
        let why = format!("at most {most} things can wait to be given back at the end: leave some, or give some back");
        Err(Error::Unsuitable { id: self.pid, why })
    }

    fn write_anchor(&self) -> Result<(), Error> {
        self.away.first().map_or(Ok(()), |anchor| self.write_stub(anchor.tid, Makes::Nothing))
    }

    /// Writes a thread's stub anew, if it is in one. It stands before or after the call, which
    /// stays where it is.
    pub(crate) fn write_stub(&self, tid: i32, makes: Makes) -> Result<(), Error> {
        let Some(at) = self.away.iter().position(|away| away.tid == tid) else { return Ok(()) };
        let away = &self.away[at];
        let held = self.threads.get(&tid).ok_or(Error::Gone { id: tid })?;
        let undo = if at == 0 { &self.undo[..] } else { &[] };
        self.write(away.stub, &self.stub_code(held, away.mask, makes, undo))
    }
}
