//! What a futex wait is reported to be: the kind of lock, its holder, and whether anyone will ever
//! wake the sleeper.

use super::futex::Waiting;
use super::owner::Owner;
use crate::Sure;

/// A wait for a futex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FutexWait {
    /// The call's arguments.
    pub call: Waiting,
    /// Address of the lock that the word belongs to, where that is known to begin elsewhere (locks
    /// for readers and writers, whose waiters sleep at two words of it), else of the word.
    pub lock: u64,
    /// The word's value now; nothing if it cannot be read.
    pub word: Option<u32>,
    /// The word says that nobody holds the lock, or that there is something to be taken (a
    /// semaphore, a condition variable).
    pub free: bool,
    /// The lock it belongs to.
    pub kind: FutexKind,
    /// How sure the kind is.
    pub sure: Sure,
    /// What names the word for all processes that share it.
    pub key: Key,
}

impl FutexWait {
    /// No living holder could release what the thread sleeps for: its word says that it is free,
    /// or its holder has ended, or is in the process that this one was forked from. True for a
    /// moment in healthy programs too. If it stays so while the thread's [`ThreadState::switches`]
    /// stand still, a wake-up was lost or the holder died with the lock.
    ///
    /// [`ThreadState::switches`]: super::ThreadState::switches
    pub fn lost(&self) -> bool {
        match self.kind {
            FutexKind::Mutex { owner: holder } | FutexKind::RwLock { writer: holder } if holder.left() => true,
            FutexKind::GivenUp => true,
            _ => self.free,
        }
    }
}

impl FutexWait {
    /// What names the lock itself: its waiters may sleep at several words of it.
    pub fn lock_key(&self) -> Key {
        let back = self.call.addr.wrapping_sub(self.lock);
        match self.key {
            Key::Private { pid, addr } => Key::Private { pid, addr: addr.wrapping_sub(back) },
            Key::Shared { dev, ino, offset } => Key::Shared { dev, ino, offset: offset.wrapping_sub(back) },
        }
    }

    /// Whether this waits to read a glibc rwlock behind a writer that waits.
    pub fn is_reader(&self) -> bool {
        matches!(self.kind, FutexKind::RwLock { .. }) && super::futex::waits_to_read(&self.call)
    }

    /// How many readers hold the rwlock, where this waits at the word that says so.
    pub fn readers(&self) -> Option<u32> {
        self.is_reader().then_some(self.word? >> 3)
    }
}

/// Kinds of locks behind a futex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutexKind {
    /// A mutex.
    Mutex {
        /// The holder.
        owner: Owner,
    },
    /// A readers-writer lock. Readers leave no trace, so an unknown writer often means that readers
    /// hold it.
    RwLock {
        /// The writer that holds it.
        writer: Owner,
    },
    /// A condition variable.
    Condvar,
    /// The end of a thread.
    Join(Owner),
    /// A semaphore.
    Semaphore,
    /// `std::thread::park` and what is built on it (channels).
    Parked,
    /// A priority-inheriting mutex that the C library gave up: the kernel said that the wait would
    /// close a ring, or that the holder has ended. The thread is parked for ever; which mutex it
    /// was is known to nobody but its registers.
    GivenUp,
    /// The bytes around the word do not show it.
    Unknown,
}

/// What names a futex word for all processes that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Memory of one process.
    Private {
        /// The process.
        pid: i32,
        /// The address there.
        addr: u64,
    },
    /// A file or shared memory.
    Shared {
        /// Device.
        dev: u64,
        /// Inode.
        ino: u64,
        /// Bytes from the file's start.
        offset: u64,
    },
}

impl Key {
    /// Whether both name words of the same memory that are at most so many bytes apart.
    pub(super) fn near(&self, other: &Key, most: u64) -> bool {
        match (*self, *other) {
            (Key::Private { pid: p, addr: a }, Key::Private { pid: q, addr: b }) => p == q && a.abs_diff(b) <= most,
            (Key::Shared { dev: d, ino: i, offset: a }, Key::Shared { dev: e, ino: j, offset: b }) => {
                (d, i) == (e, j) && a.abs_diff(b) <= most
            }
            _ => false,
        }
    }
}
