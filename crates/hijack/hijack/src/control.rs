//! Stop, inspect, step and resume single threads of guests.
//!
//! A thread that is in guest code stops at once, one in a system call when the call ends; a stop
//! interrupts calls as a signal with `SA_RESTART` does, so that the few calls that are never
//! restarted (epoll_wait, nanosleep) end with EINTR.

use crate::attendant::{VALUE_STOP, is_guest};
use crate::session::Session;
use crate::shared::{Inspection, SLOT_USED, split_state};
use orbit_linux::{futex, remote, signals};
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const RUN: u32 = 0;
const STOP: u32 = 1;
const STEP: u32 = 2;
const STOPPED: u32 = 1;
/// A signal that met a moment at which it cannot stop the thread is sent again.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// Registers of a guest, in the order of `struct orbit_registers`.
#[expect(missing_docs, reason = "the names are the processor's")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub rsp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rcx: u64,
    pub r11: u64,
    pub rflags: u64,
}

impl Registers {
    pub(crate) fn from_words(words: [u64; 18]) -> Registers {
        let [rax, rbx, rdx, rsi, rdi, rbp, rsp, r8, r9, r10, r12, r13, r14, r15, rip, rcx, r11, rflags] = words;
        Registers { rax, rbx, rdx, rsi, rdi, rbp, rsp, r8, r9, r10, r12, r13, r14, r15, rip, rcx, r11, rflags }
    }

    fn words(&self) -> [u64; 18] {
        let Registers { rax, rbx, rdx, rsi, rdi, rbp, rsp, r8, r9, r10, r12, r13, r14, r15, rip, rcx, r11, rflags } =
            *self;
        [rax, rbx, rdx, rsi, rdi, rbp, rsp, r8, r9, r10, r12, r13, r14, r15, rip, rcx, r11, rflags]
    }
}

/// A thread that is stopped. Dropped, it continues.
#[derive(Debug)]
pub struct Stopped<'a> {
    session: &'a Session,
    slot: usize,
    pid: u32,
    tid: u32,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session of process {}", self.pid())
    }
}

impl Session {
    /// Process and thread of all threads of guests now.
    pub fn threads(&self) -> Vec<(u32, u32)> {
        self.slots().map(|(_, pid, tid)| (pid, tid)).collect()
    }

    fn slots(&self) -> impl Iterator<Item = (usize, u32, u32)> {
        (0..self.memory.slot_limit()).filter_map(|index| {
            let slot = self.memory.slot(index);
            let (pid, tid) = (slot.pid.load(Ordering::Relaxed), slot.tid.load(Ordering::Relaxed));
            let is_used = split_state(slot.state.load(Ordering::Acquire)).0 == SLOT_USED;
            (is_used && is_guest(pid, tid, self.image)).then_some((index, pid, tid))
        })
    }

    /// Stops a thread of a guest, and waits for it at most for `limit`.
    ///
    /// # Errors
    /// `NotFound`: no guest has the thread. `TimedOut`: it did not come to a stop (it is in a call
    /// that no signal ends).
    pub fn stop(&self, tid: u32, limit: Duration) -> io::Result<Stopped<'_>> {
        let Some((slot, pid, tid)) = self.slots().find(|(_, _, each)| *each == tid) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no guest has a thread {tid}")));
        };
        let inspection = self.memory.inspection(slot);
        inspection.command.store(STOP, Ordering::SeqCst);
        let stopped = Stopped { session: self, slot, pid, tid };
        stopped.wait(inspection, limit, true)?;
        Ok(stopped)
    }
}

impl Stopped<'_> {
    fn inspection(&self) -> &Inspection {
        self.session.memory.inspection(self.slot)
    }

    fn wait(&self, inspection: &Inspection, limit: Duration, signals: bool) -> io::Result<()> {
        let end = Instant::now() + limit;
        loop {
            let state = inspection.state.load(Ordering::SeqCst);
            if state == STOPPED {
                return Ok(());
            }
            if Instant::now() >= end {
                let text = format!("thread {} did not stop in {:.1} s", self.tid, limit.as_secs_f64());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            if !is_guest(self.pid, self.tid, self.session.image) {
                return Err(io::Error::new(io::ErrorKind::NotFound, format!("thread {} has ended", self.tid)));
            }
            if signals {
                signals::queue_to_thread(self.pid as i32, self.tid as i32, libc::SIGSYS, VALUE_STOP)?;
            }
            // A wait that ends early or late makes no difference.
            let _ = futex::wait(&inspection.state, state, Some(RETRY_AFTER));
        }
    }

    /// Its registers.
    pub fn registers(&self) -> Registers {
        Registers::from_words(std::array::from_fn(|nth| self.inspection().registers[nth].load(Ordering::Relaxed)))
    }

    /// Changes its registers; of the flags only those of arithmetic.
    pub fn set_registers(&self, registers: &Registers) {
        for (to, word) in self.inspection().registers.iter().zip(registers.words()) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Reads memory of its process.
    ///
    /// # Errors
    /// `EFAULT` for addresses that it does not have.
    pub fn read(&self, address: u64, to: &mut [u8]) -> io::Result<()> {
        match remote::read(self.pid as i32, address, to)? {
            read if read == to.len() => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Writes memory of its process.
    ///
    /// # Errors
    /// `EFAULT` for addresses that it does not have or may not write.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        remote::write(self.pid as i32, address, bytes)
    }

    /// Runs one instruction of the guest. A system call is one, whatever the executive makes of it.
    ///
    /// # Errors
    /// `TimedOut`: the instruction is a system call that lasts longer. `NotFound`: the thread has
    /// ended.
    pub fn step(&self, limit: Duration) -> io::Result<()> {
        let inspection = self.inspection();
        // Before the command, which may stop the thread again at once.
        inspection.state.store(0, Ordering::SeqCst);
        self.command(STEP);
        self.wait(inspection, limit, false)
    }

    fn command(&self, command: u32) {
        let inspection = self.inspection();
        inspection.command.store(command, Ordering::SeqCst);
        futex::wake(&inspection.command, i32::MAX);
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.command(RUN);
    }
}
