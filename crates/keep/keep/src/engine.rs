//! Checkpoints of a program that runs already, and going back to them, for a caller that decides
//! itself when: the pins P_MEM and P_SIG of the reliability microkernel offer this to modules.
//! `orbit keep` uses the same parts directly.
//!
//! Promises: the program runs untraced between two calls. A thread that a signal would kill waits
//! until the caller has it put back or lets it die; also, within a second, if the caller's process
//! has ended.

use crate::arguments::Exactness;
use crate::attach::Attached;
use crate::bell::Bell;
use crate::error::Error;
use crate::kept::{Kept, Policy, Taken};
use crate::ladder::Step;
use crate::layout::Handlers;
use crate::restore::Restored;
use crate::shared::Shared;
use graft::Process;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// How checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Checkpoints that are kept, 1 to 16, spaced by powers of two of `interval`.
    pub generations: usize,
    /// From one checkpoint to the next.
    pub interval: Duration,
    /// Memory for pages, in bytes; the oldest checkpoint goes first.
    pub memory: u64,
}

/// A checkpoint, or why there is none now: ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// It was taken.
    Taken {
        /// Pages copied.
        pages: usize,
        /// How long the program stood still.
        pause: Duration,
    },
    /// It was put off: a thread has crashed, or is about to.
    PutOff,
}

/// A thread that waits in place of dying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The thread.
    pub tid: i32,
    /// The signal.
    pub signal: i32,
    /// The address that it is about.
    pub address: u64,
    /// The instruction.
    pub ip: u64,
}

/// A program with our handlers in it, and its checkpoints. May be moved between threads.
pub struct Engine {
    kept: Kept,
    shared: Arc<Shared>,
    attached: Attached,
}

/// Waits for crashes of a program; while it lives, the program sees that somebody will deal with
/// them. May be used from another thread than its [`Engine`].
pub struct Crashes {
    bell: Bell,
    shared: Arc<Shared>,
}

/// Puts handlers for fatal signals into a running program. It stands still for some milliseconds.
///
/// # Errors
/// The program cannot be entered, or is kept already.
pub fn attach(pid: i32, options: Options) -> Result<(Engine, Crashes), Error> {
    let process = Process::find(pid)?;
    let shared = Shared::new(0, Handlers::default()).map_err(Error::io("making shared memory"))?;
    let attached = Attached::new(&process, &shared)?;
    let shared = Arc::new(shared);
    let bell = Bell::start(&shared).map_err(Error::io("making the thread that waits for the program"))?;
    let Options { generations, interval, memory } = options;
    let kept = Kept::new(process, Policy { generations, interval, memory, exactness: Exactness::BestEffort });
    Ok((Engine { kept, shared: Arc::clone(&shared), attached }, Crashes { bell, shared }))
}

impl Engine {
    /// Fatal signals that the program handles itself: they are left to it.
    pub fn left(&self) -> &[i32] {
        &self.attached.left
    }

    /// Whether the program has exited.
    pub fn has_exited(&self) -> bool {
        self.kept.process().has_exited()
    }

    /// How checkpoints are kept from now on.
    pub fn set_options(&mut self, options: Options) {
        let Options { generations, interval, memory } = options;
        self.kept.set_policy(Policy { generations, interval, memory, exactness: Exactness::BestEffort });
    }

    /// Takes a checkpoint.
    ///
    /// # Errors
    /// The program cannot be entered, or has become another one by exec.
    pub fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        match self.kept.checkpoint(&self.shared)? {
            Taken::Checkpoint(figures) => Ok(Checkpoint::Taken { pages: figures.pages, pause: figures.pause }),
            Taken::Crashed | Taken::Dying | Taken::Unsafe | Taken::NotReady => Ok(Checkpoint::PutOff),
        }
    }

    /// Bytes of pages that the checkpoints hold.
    pub fn held(&self) -> u64 {
        self.kept.bytes()
    }

    /// Age of each checkpoint, newest first.
    pub fn ages(&self) -> Vec<Duration> {
        (0..self.kept.checkpoints()).map(|nth| self.kept.age(Step::Replay(nth))).collect()
    }

    /// Puts the program back to a checkpoint (0: the newest) and lets it run; newer ones are
    /// forgotten. Gives also how long it stood still.
    ///
    /// # Errors
    /// There is no such checkpoint, or no thread that has crashed, or the program cannot be
    /// entered.
    pub fn restore(&mut self, nth: usize) -> Result<(Restored, Duration), Error> {
        let count = self.kept.checkpoints();
        if nth >= count {
            return Err(Error::Unkept(format!("checkpoint {nth} is none: there are {count}, from 0 on")));
        }
        let crash = self.shared.crash().ok_or_else(|| Error::Unkept("no thread of it has crashed".into()))?;
        let done = self.kept.recover(&self.shared, &crash, Step::Replay(nth))?;
        done.ok_or_else(|| Error::Unkept("a call was under way: try again".into()))
    }

    /// The thread that waits, if one does.
    pub fn crash(&self) -> Option<Crash> {
        crash(&self.shared)
    }

    /// Lets the thread that waits die of its signal.
    pub fn give_up(&self) {
        self.shared.give_up();
    }

    /// Takes the handlers out; the program continues without checkpoints. A thread that waits dies
    /// of its signal.
    ///
    /// # Errors
    /// The program cannot be entered; it may have exited.
    pub fn leave(self) -> Result<(), Error> {
        if self.shared.crash().is_some() {
            self.shared.give_up();
        }
        self.attached.leave(self.kept.process())
    }
}

fn crash(shared: &Shared) -> Option<Crash> {
    let crash = shared.crash()?;
    Some(Crash { tid: crash.tid, signal: crash.signal, address: crash.address, ip: crash.ip })
}

impl Crashes {
    /// The thread that waits, if one does.
    pub fn current(&self) -> Option<Crash> {
        crash(&self.shared)
    }

    /// Forgets that the program rang.
    pub fn drain(&self) {
        self.bell.drain();
    }

    /// Lets the thread that waits die of its signal.
    pub fn give_up(&self) {
        self.shared.give_up();
    }
}

impl AsFd for Crashes {
    /// Readable after the program rang: see [`Crashes::current`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
