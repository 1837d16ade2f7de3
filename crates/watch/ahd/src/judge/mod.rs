//! The rules: pure functions of facts, history and limits.
//!
//! Owns: [`Verdict`] and the list of [`JUDGES`]. Promises: a rule does no I/O and keeps nothing;
//! the same facts give the same verdicts.

mod closed_set;
mod goroutines;
mod lock_held;
mod loop_left;
mod owed;
mod section;
mod stopped;
mod unanswered;
mod unreaped;

pub use closed_set::closed_set;
pub use goroutines::goroutines;
pub use lock_held::lock_held;
pub use loop_left::loop_left;
pub use owed::owed;
pub use section::{may_end_soon, others_work, section};
pub use stopped::stopped;
pub use unanswered::unanswered;
pub use unreaped::unreaped;

use crate::facts::{Back, Facts, Id, Locked};
use crate::history::History;
use crate::limits::Limits;
use crate::wakers::How;
use orbit_inspect::Sure;

/// What a rule finds.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The same for the same hang, scan after scan.
    pub key: Key,
    /// How sure it is.
    pub sure: Sure,
    /// Threads that are part of it, the one to blame first.
    pub threads: Vec<Id>,
    /// Since when it lasts, s.
    pub since: f64,
    /// What was allowed, s.
    pub allowed: f64,
    /// Why.
    pub why: Why,
}

/// What a verdict is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A closed set, by its first thread.
    Closed(Id),
    /// A thread that left its loop.
    Left(Id),
    /// A lock, by the thread that holds it, or by process and address where that is not known.
    Held(Id),
    /// The same without a known holder.
    HeldAt(i32, u64),
    /// Locks of a process' goroutines.
    Goroutines(i32),
    /// A port of a process.
    Unanswered(i32, u16),
    /// A thread that waits for an answer.
    Owed(Id),
    /// A thread that waits for a process which is stopped.
    Stopped(Id),
    /// A thread that waits while its process has not asked for a child that exited.
    Unreaped(Id),
    /// A thread in a section of its process, by number.
    Section(Id, usize),
}

impl Key {
    /// The rule's name, as `.expect` files have it.
    pub fn rule(self) -> &'static str {
        match self {
            Key::Closed(_) => "closed_set",
            Key::Left(_) => "loop_left",
            Key::Held(_) | Key::HeldAt(..) => "lock_held",
            Key::Goroutines(_) => "goroutines",
            Key::Unanswered(..) => "unanswered",
            Key::Owed(_) => "owed",
            Key::Stopped(_) => "stopped",
            Key::Unreaped(_) => "unreaped",
            Key::Section(..) => "section",
        }
    }
}

/// The reason, as data; [`crate::report`] makes the sentence.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// Each of these threads waits for others of them only.
    ClosedSet(Vec<(Id, How)>),
    /// A thread with a loop has not been back for `away` s; before at most for `longest` s.
    LoopLeft {
        /// Time away, s.
        away: f64,
        /// Longest time away before, s.
        longest: f64,
        /// Returns.
        returns: u64,
        /// System call it sleeps in; nothing if it uses the CPU.
        call: Option<i64>,
        /// Descriptors with input waiting since it left.
        waiting: Vec<i32>,
    },
    /// A lock is held beyond the limit.
    LockHeld {
        /// A thread that waits for it.
        waiter: Id,
        /// How long, s.
        waited: f64,
        /// Address of the lock it waits for.
        at: u64,
        /// The thread at the end of the chain of holders; nothing if it is not known.
        holder: Option<Id>,
        /// A thread that waits to read the same lock, behind the writer that waits.
        reader: Option<Id>,
    },
    /// Goroutines wait for locks beyond the limit.
    Goroutines {
        /// How long the first of them, s.
        waited: f64,
        /// Each; of a ring those that are part of it, in its order.
        waits: Vec<Locked>,
        /// Whether each seems to wait for the next one.
        is_ring: bool,
    },
    /// Requests were read and not answered.
    Unanswered {
        /// The port.
        port: u16,
        /// How many.
        requests: usize,
        /// Age of the oldest, s.
        oldest: f64,
        /// Longest time an answer took before, s.
        longest: f64,
    },
    /// A thread waits for an answer on a connection that its process opened.
    Owed {
        /// The port that it asked at.
        port: u16,
        /// Its descriptor of the connection.
        fd: i32,
        /// How long, s.
        waited: f64,
        /// Longest time an answer took before, s.
        longest: f64,
        /// What the other side does, and the processes that have it; nothing before that was read.
        back: Option<(Back, Vec<i32>)>,
    },
    /// A thread waits for processes that a signal has stopped.
    Stopped {
        /// What for.
        how: How,
        /// How long, s.
        waited: f64,
        /// The processes.
        pids: Vec<i32>,
    },
    /// A thread waits for signals or events while its process has not asked for children that
    /// exited.
    Unreaped {
        /// The system call.
        call: i64,
        /// How long, s.
        waited: f64,
        /// The children.
        pids: Vec<i32>,
    },
    /// A thread does not leave a section.
    Section {
        /// The section's name.
        name: String,
        /// CPU time used in this execution, ns; nothing if it waits.
        used: Option<u64>,
        /// What executions usually use, ns, once that is known.
        usual: Option<u64>,
        /// What one may use, or for how long one may wait, ns.
        check: u64,
    },
}

/// A rule.
pub type Judge = fn(&Facts, &History, &Limits) -> Vec<Verdict>;

/// All rules, in the order in which they are applied.
pub const JUDGES: [Judge; 9] =
    [closed_set, section, loop_left, lock_held, goroutines, unanswered, owed, stopped, unreaped];

/// Applies all rules.
pub fn judge(facts: &Facts, history: &History, limits: &Limits) -> Vec<Verdict> {
    JUDGES.iter().flat_map(|judge| judge(facts, history, limits)).collect()
}
