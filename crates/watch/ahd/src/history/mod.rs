//! What is learnt of the watched processes over time: homes of threads, their longest absence, how
//! ports answer.
//!
//! Owns: [`History`], which takes the same records as [`Facts`]. Promises: pure; what belongs to a
//! program ends with it (exec).

mod habit;
mod home;
mod port;

pub use habit::{Habit, Places, Stamp};
pub use home::{Home, futex_op, home, naps, reads, serves, takes_events, waits_for_lock};
pub use port::{FIRST_CHOSEN, Port, Ports, Waiting};

use port::listened;

use crate::facts::{Facts, Id, Record, Seen};
use crate::limits::Limits;
use crate::section::Marked;
use std::collections::BTreeMap;

/// An execution is watched closer when so much of its check value is left, ns.
const DUE: u64 = 30_000_000;

/// What is learnt of a process.
#[derive(Clone, Debug, Default)]
pub struct Learnt {
    /// Homes that its threads share.
    shared: Places,
    /// Time that one of its threads has waited for a CPU, in each scan the one that waited longest,
    /// ns: no single thread has lost more.
    pub queue: u64,
    /// The longest wait of a thread in this scan, ns.
    queued: u64,
    /// Its ports.
    pub ports: Ports,
    /// Its sections.
    pub marked: Marked,
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// By thread.
    pub threads: BTreeMap<Id, Habit>,
    /// By process.
    pub processes: BTreeMap<i32, Learnt>,
}

impl History {
    /// Takes a record, and has the facts take it.
    pub fn take(&mut self, facts: &mut Facts, record: &Record) {
        let seen = facts.take(record);
        match record {
            Record::Thread(new) => {
                let Some((seen, old)) = seen else { return };
                let id = Id { pid: new.p, tid: new.i };
                if seen == Seen::Exec {
                    self.processes.remove(&id.pid);
                    self.threads.remove(&id);
                }
                let old = old.filter(|_| seen != Seen::Exec);
                if seen == Seen::Same {
                    return;
                }
                let learnt = self.processes.entry(id.pid).or_default();
                let lost = facts.threads.get(&id).map_or(0.0, |thread| thread.lost(new.t));
                self.threads.entry(id).or_default().saw(old.as_ref(), new, lost, facts.now, &mut learnt.shared);
                learnt.queued = learnt.queued.max(old.map_or(0, |old| new.wt.saturating_sub(old.wt)));
            }
            Record::Connections { t, p, c } => {
                // A connection may have come in at a port that another process listens on: its
                // parent, or one that passed it on.
                let mut served = listened(c);
                let others = self.processes.iter().filter(|(pid, _)| *pid != p);
                served.extend(others.flat_map(|(_, learnt)| learnt.ports.listened()));
                let learnt = self.processes.entry(*p).or_default();
                learnt.ports.saw(*t, learnt.queue, c, &served);
            }
            Record::Tick { .. } => {
                for learnt in self.processes.values_mut() {
                    learnt.queue += std::mem::take(&mut learnt.queued);
                }
            }
            Record::Marks { t, p, n, c, l } => self.processes.entry(*p).or_default().marked.saw(*t, n, c, l),
            Record::Gone { p, i, .. } => {
                self.threads.remove(&Id { pid: *p, tid: *i });
                if let Some(learnt) = self.processes.get_mut(p) {
                    learnt.marked.gone(*i);
                }
                if !facts.processes.contains_key(p) {
                    self.processes.remove(p);
                }
            }
            _ => {}
        }
    }

    /// Whether an execution of a section is about to use more than it may, so that a scan out of
    /// turn is of use.
    pub fn is_section_due(&self, limits: &Limits) -> bool {
        let limit = (limits.limit * 1e9) as u64;
        self.processes.values().any(|learnt| {
            learnt.marked.inside().any(|(_, section, inside)| {
                let used = inside.runs.1.saturating_sub(inside.from);
                let Some((_, executions)) = learnt.marked.section(section) else { return false };
                let check = executions.allowed(limits.factor, limits.floor, limit, inside.ran_at);
                inside.runs.1 > inside.runs.0 && used + DUE >= check
            })
        })
    }

    /// Sleeps between returns of all threads of a process to their homes.
    pub fn returns(&self, pid: i32) -> u64 {
        self.habits(pid).map(|habit| habit.returns).sum()
    }

    /// Whether a thread of a process is where its events come in, or was after this moment, s.
    pub fn was_at_event_loop(&self, pid: i32, since: f64) -> bool {
        let was = |habit: &Habit| habit.at_home || habit.last_home.is_some_and(|(home, _)| home.t > since);
        self.habits(pid).any(|habit| habit.is_event_loop && was(habit))
    }

    fn habits(&self, pid: i32) -> impl Iterator<Item = &Habit> {
        let all = self.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX });
        all.map(|(_, habit)| habit)
    }
}
