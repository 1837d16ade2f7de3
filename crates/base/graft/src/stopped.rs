//! A program whose threads are all stopped, and how it is released as it was.

use crate::denial::explain;
use crate::process::Process;
use crate::stub::{self, Makes, Room, Undo};
use crate::thread::{Held, Thread};
use crate::{Error, limits};
use orbit_linux::maps::Entry;
use orbit_linux::ptrace::{self, state};
use orbit_linux::{remote, signals};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// A program whose threads are all stopped. Dropping it gives back what was not left and lets the
/// threads continue.
///
/// It belongs to the thread that traces the program, and cannot leave it.
#[derive(Debug)]
pub struct Stopped<'p> {
    pub(crate) process: &'p Process,
    pub(crate) pid: i32,
    pub(crate) threads: BTreeMap<i32, Held>,
    /// The threads in stubs: first the *anchor*, whose stub undoes everything, then perhaps
    /// another.
    pub(crate) away: Vec<Away>,
    /// Whether a filter judges injected calls: each was tried in a child of this process before.
    pub(crate) is_judged: bool,
    /// Where the stubs stand, once one was needed.
    pub(crate) room: Option<Room>,
    /// Whether a thread that is not ours any more is in a stub, which so has to stay.
    pub(crate) keeps_room: bool,
    /// What is undone at the end, or by the anchor's stub if this process is killed.
    pub(crate) undo: Vec<Undo>,
    /// The mappings, as they were read since the last call was made.
    pub(crate) seen: RefCell<Option<Vec<Entry>>>,
    /// Memory in the program for arguments of calls.
    pub(crate) scratch: Option<u64>,
    since: Instant,
    released: bool,
    this_thread: PhantomData<*const ()>,
}

/// A thread in the stub.
#[derive(Debug)]
pub(crate) struct Away {
    pub(crate) tid: i32,
    /// Where its stub stands.
    pub(crate) stub: u64,
    /// Its own signal mask.
    pub(crate) mask: u64,
}

impl<'p> Stopped<'p> {
    pub(crate) fn new(process: &'p Process, threads: BTreeMap<i32, Held>) -> Stopped<'p> {
        let mut stopped = Stopped {
            process,
            pid: process.pid(),
            threads,
            away: Vec::new(),
            is_judged: false,
            room: None,
            keeps_room: false,
            undo: Vec::new(),
            seen: RefCell::new(None),
            scratch: None,
            since: Instant::now(),
            released: false,
            this_thread: PhantomData,
        };
        stopped.end_waits();
        stopped
    }

    /// Calls that the stop has cut short and whose time limit is over return as they do then.
    fn end_waits(&mut self) {
        let before = std::mem::take(&mut *self.process.waits());
        let mut now = HashMap::new();
        for (tid, held) in self.threads.iter_mut().filter(|(_, held)| held.cut_short) {
            let Some((limit, result)) = limits::limit(self.process, &held.registers) else { continue };
            let wait = limits::waits(before.get(tid), &held.registers, limits::runs(self.pid, *tid));
            if wait.is_over(limit) {
                (held.registers.rax, held.changed) = (result as u64, true);
            } else {
                now.insert(*tid, wait);
            }
        }
        *self.process.waits() = now;
    }

    /// The process.
    pub fn process(&self) -> &'p Process {
        self.process
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How long all threads have been stopped.
    pub fn stopped_for(&self) -> Duration {
        self.since.elapsed()
    }

    /// The ids of the stopped threads, in order. A leader that ended before its threads is not
    /// among them.
    pub fn tids(&self) -> Vec<i32> {
        self.threads.keys().copied().collect()
    }

    /// One of the stopped threads.
    ///
    /// # Errors
    /// [`Error::Gone`] if it is none of them.
    pub fn thread(&mut self, tid: i32) -> Result<Thread<'_, 'p>, Error> {
        match self.threads.contains_key(&tid) {
            true => Ok(Thread { stopped: self, tid }),
            false => Err(Error::Gone { id: tid }),
        }
    }

    /// Returns the mappings of the program, sorted by address.
    ///
    /// # Errors
    /// As [`Process::mappings`].
    pub fn mappings(&self) -> Result<Vec<Entry>, Error> {
        if let Some(seen) = &*self.seen.borrow() {
            return Ok(seen.clone());
        }
        let now = self.process.mappings()?;
        *self.seen.borrow_mut() = Some(now.clone());
        Ok(now)
    }

    /// Returns the mappings that the program has once it is released: without regions of ours that
    /// were not [left](Stopped::leave), and memory for arguments of calls.
    ///
    /// # Errors
    /// As [`Process::mappings`].
    pub fn lasting_mappings(&self) -> Result<Vec<Entry>, Error> {
        let mut mappings = self.mappings()?;
        let goes = |entry: &Entry| {
            self.undo.iter().any(|undo| matches!(undo, Undo::Unmap { start, .. } if *start == entry.start))
        };
        mappings.retain(|entry| !goes(entry));
        Ok(mappings)
    }

    /// Reads memory: see [`Process::read`]. Not torn, as far as no other process shares the memory.
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.process.read(address, buffer)
    }

    /// Writes memory, also where the program itself may not write (code): pages of private mappings
    /// are copied first, so that no file changes.
    ///
    /// # Errors
    /// [`Error::Memory`] where nothing is mapped and where shared memory may not be written;
    /// [`Error::Gone`].
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let through = self.process.through_a_thread(|tid| remote::write_through_protection(tid, address, bytes));
        let Err(first) = through else { return Ok(()) };
        // A kernel may deny that file and still let a tracer do it, word by word.
        self.poke(address, bytes).map_err(|_| self.process.memory("writing", address, bytes.len(), first))
    }

    fn poke(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let tid = *self.threads.keys().next().ok_or(Error::Gone { id: self.pid })?;
        let mut done = 0;
        while done < bytes.len() {
            let at = address + done as u64;
            let (start, skip) = (at & !7, (at & 7) as usize);
            let n = (8 - skip).min(bytes.len() - done);
            let mut word = [0u8; 8];
            self.read(start, &mut word)?;
            word[skip..skip + n].copy_from_slice(&bytes[done..done + n]);
            ptrace::state::poke(tid, start, u64::from_ne_bytes(word))
                .map_err(|e| explain(self.pid, tid, "writing", e))?;
            done += n;
        }
        Ok(())
    }

    /// Undoes what was not left and lets all threads continue. Tries everything; returns the first
    /// error.
    pub(crate) fn release(&mut self) -> Result<(), Error> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        let mut result = Ok(());
        while let Some(undo) = self.undo.last().copied() {
            result = result.and(self.undo_now(undo));
            // Also where that failed: there is no other try.
            self.undo.retain(|other| *other != undo);
        }
        result = result.and(self.all_home());
        if let Some(room) = self.room.take().filter(|_| !self.keeps_room) {
            result = result.and(self.write(room.address, &vec![0; room.len]));
        }
        // Asked before it is let go: afterwards it may exit of itself.
        let killed = self.process.has_exited();
        for (tid, held) in std::mem::take(&mut self.threads) {
            if held.changed {
                // Fails only for a thread that was killed.
                let _ = ptrace::set_registers(tid, &held.registers);
            }
            for signal in held.owed {
                // The thread is stopped, so its id is its own.
                let _ = signals::send_to_thread(self.pid, tid, signal);
            }
            if let Some(wait) = self.process.waits().get_mut(&tid) {
                wait.released(self.pid, tid);
            }
            // As above: a thread that was killed needs no release.
            let _ = ptrace::detach(tid, 0);
        }
        match killed {
            true => Err(Error::Gone { id: self.pid }),
            false => result,
        }
    }

    /// The anchor goes last: until then its stub undoes what is to be undone.
    fn all_home(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        while let Some(away) = self.away.last() {
            result = result.and(self.come_home(away.tid));
        }
        result
    }

    /// The code of the stub for a thread that is away, or is about to be.
    pub(crate) fn stub_code(&self, held: &Held, mask: u64, makes: Makes, undo: &[Undo]) -> Vec<u8> {
        let by_int80 = {
            let mut bytes = [0u8; 2];
            let made = held.registers.rip.wrapping_sub(2);
            self.process.read(made, &mut bytes).is_ok() && bytes == [0xcd, 0x80]
        };
        stub::code(&crate::restart::settled(&held.registers, by_int80), mask, makes, undo)
    }

    /// The signal mask of a thread at home.
    pub(crate) fn mask_of(&self, tid: i32) -> Result<u64, Error> {
        state::signal_mask(tid).map_err(|e| explain(self.pid, tid, "reading the signal mask of", e))
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // A failure has no one to go to: drop returns nothing.
        let _ = self.give_back();
    }
}
