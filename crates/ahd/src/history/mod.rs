//! What is learnt of the watched processes over time: homes of threads, their longest absence, how ports answer.
//!
//! Owns: [`History`], which takes the same records as [`Facts`]. Promises: pure; what belongs to a program ends with it (exec).

mod habit;
mod home;
mod port;

pub use habit::{Habit, Places, Stamp};
pub use home::{Home, futex_op, home, serves, waits_for_lock};
pub use port::{Port, Ports, Waiting};

use crate::facts::{Facts, Id, Record, Seen};
use std::collections::BTreeMap;

/// What is learnt of a process.
#[derive(Clone, Debug, Default)]
pub struct Learnt {
    /// Homes that its threads share.
    shared: Places,
    /// Time that its threads have waited for a CPU, all together, ns.
    pub queue: u64,
    /// Its ports.
    pub ports: Ports,
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
                self.threads.entry(id).or_default().saw(old.as_ref(), new, &mut learnt.shared);
                learnt.queue += old.map_or(0, |old| new.wt.saturating_sub(old.wt));
            }
            Record::Connections { t, p, c } => {
                let learnt = self.processes.entry(*p).or_default();
                learnt.ports.saw(*t, learnt.queue, c);
            }
            Record::Gone { p, i, .. } => {
                self.threads.remove(&Id { pid: *p, tid: *i });
                if !facts.processes.contains_key(p) {
                    self.processes.remove(p);
                }
            }
            _ => {}
        }
    }

    /// Sleeps between returns of all threads of a process to their homes.
    pub fn returns(&self, pid: i32) -> u64 {
        let all = self.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX });
        all.map(|(_, habit)| habit.returns).sum()
    }
}
