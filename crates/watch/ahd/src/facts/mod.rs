//! What is known of the watched processes at one moment: the latest of each record, nothing
//! concluded.
//!
//! Owns: [`Facts`], which takes one [`Record`] after the other. Promises: pure; no I/O and no clock
//! but the records' own. What is learnt over time is [`crate::history`]'s, which the same records
//! feed.

mod ends;
mod gates;
mod record;

pub use ends::{Access, Ends, Peer};
pub use record::{Back, Cell, Connection, Locked, Record, Runtime, Sight, SocketUse, Unsure, VERSION, WaitFacts};

use crate::history::waits_for_lock;
use crate::wakers::chain_end;
use std::collections::{BTreeMap, BTreeSet};

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
}

/// A watched process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its parent.
    pub parent: i32,
    /// Signals it catches, bit n-1 for signal n.
    pub caught: u64,
    /// Its program is Python, which catches SIGINT for itself.
    pub is_python: bool,
    /// Its threads.
    pub threads: BTreeSet<i32>,
    /// Threads by their id in the process' own namespace, where that is another one.
    pub inner: BTreeMap<i32, i32>,
    /// Descriptors that have input waiting, and since when that is known, s.
    pub ready: BTreeMap<i32, f64>,
    /// Why it cannot be known who could end its waits.
    pub unsure: Vec<Unsure>,
    /// When a thread of it was last seen to have ended, s.
    pub thread_ended: f64,
    /// A lock of it was seen to be released by another thread than its owner.
    pub has_gates: bool,
    /// What the other sides of its connections did, by descriptor: when that was read, s, and which
    /// processes have it.
    pub backs: BTreeMap<i32, (f64, Back, Vec<i32>)>,
    /// What its runtime's memory said of locks, once that was read.
    pub held: Option<HeldLocks>,
    /// Children that have exited and that it has not asked for, and when that was read, s.
    pub unreaped: (f64, Vec<i32>),
    /// Goroutines that wait for locks, and of each since when it has not run: when that was seen
    /// first, s, and what the process had lost then.
    pub goroutines: Vec<(Locked, f64, f64)>,
}

/// What a runtime's memory says of its locks. It is not read at one moment: it counts for threads
/// that slept before, and are still seen to in a later scan.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldLocks {
    /// When it was read, s.
    pub t: f64,
    /// The runtime.
    pub by: Runtime,
    /// Address and holder of the lock that a thread waits for, by the thread.
    pub locks: BTreeMap<i32, (u64, i32)>,
}

/// A thread.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Which one.
    pub id: Id,
    /// Its name.
    pub comm: String,
    /// How it was seen last.
    pub sight: Sight,
    /// What it waits for, if that was read since it came to rest.
    pub wait: Option<WaitFacts>,
    /// Since when it has not run, s.
    pub since: f64,
    /// Since when the lock that it waits for is known to have the owner that it has now, s.
    pub same_owner_since: f64,
    /// The watcher stopped it since it was seen last.
    pub stopped: bool,
    /// Time it was stopped, traced or in an uninterruptible wait, all together, s.
    pub halted: f64,
    /// Since when a signal has stopped it, s.
    pub stopped_since: Option<f64>,
    /// Since when it could run and was not seen to get any CPU, s; nothing once it does, for then
    /// the kernel has counted it.
    pub starved_since: Option<f64>,
    /// Since when it has used, or waited for, a CPU without a pause worth the name, s, and for how
    /// long it had done so before, ns.
    pub busy: Option<(f64, u64)>,
    /// The thread at the end of the chain of holders it waits for, and what that had lost when it
    /// was first known to be.
    pub owed_by: Option<(Id, f64)>,
    /// The lock that it waited for before it last ran, if that had an owner.
    left_lock: Option<gates::LeftLock>,
}

impl Thread {
    /// Whether it is asleep.
    pub fn sleeps(&self) -> bool {
        self.sight.st == 'S'
    }

    /// Time for which the machine, a debugger or a signal kept it from running, all together, s.
    pub fn lost(&self, now: f64) -> f64 {
        self.sight.wt as f64 / 1e9 + self.halted + self.starved_since.map_or(0.0, |since| (now - since).max(0.0))
    }

    /// Whether it is stopped, traced or in an uninterruptible wait: not the program's doing.
    pub fn is_halted(&self) -> bool {
        is_halted(self.sight.st)
    }

    /// Whether the call that it is in waits for a lock.
    pub fn waits_for_lock(&self) -> bool {
        waits_for_lock(&self.sight) && !self.wait.as_ref().is_some_and(WaitFacts::is_condition_variable)
    }

    /// Whether it has computed without a pause for so long.
    pub fn computes_for(&self, now: f64, seconds: f64) -> bool {
        self.busy.is_some_and(|(since, _)| now - since >= seconds)
    }

    /// Whether it has been asleep in the same call for so long, and what it waits for is known.
    pub fn idle_for(&self, now: f64, seconds: f64) -> bool {
        self.sleeps() && self.wait.is_some() && now - self.since >= seconds
    }
}

fn is_halted(state: char) -> bool {
    matches!(state, 'D' | 'T' | 't')
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The time of the last scan, s.
    pub now: f64,
    /// Watched processes.
    pub processes: BTreeMap<i32, Process>,
    /// Their threads.
    pub threads: BTreeMap<Id, Thread>,
    /// Who holds pipes and sockets, once that was read.
    pub ends: Option<Ends>,
    /// When that was read last, s; infinite in recordings that do not say.
    pub ends_read: f64,
}

/// What a sight of a thread means beside what was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was met for the first time.
    New,
    /// It runs another program: nothing that was learnt counts.
    Exec,
    /// It has run since it was seen last.
    Ran,
    /// It is in the same wait as before.
    Same,
}

/// A thread that is never seen asleep, and uses, or waits for, a CPU for this share of the time,
/// computes without a pause: in a virtual machine the host takes a part of it.
const BUSY_SHARE: f64 = 0.6;

/// CPU time that a stop by the watcher may cost a thread, ns.
const STIRS_NS: u64 = 10_000_000;

impl Facts {
    /// Takes a record. Of a sight it answers what it means, and how the thread was seen before.
    pub fn take(&mut self, record: &Record) -> Option<(Seen, Option<Sight>)> {
        if let Record::Process { p, exe, .. } = record {
            self.processes.entry(*p).or_default().is_python = exe.contains("python");
        }
        match record {
            Record::Process { p, pp, cgt, unsure, .. } | Record::Changed { p, pp, cgt, unsure } => {
                let process = self.processes.entry(*p).or_default();
                (process.parent, process.caught) = (*pp, *cgt);
                process.unsure.clone_from(unsure);
            }
            Record::Thread(sight) => return Some(self.saw(sight)),
            Record::Wait(wait) => self.waits(wait),
            Record::Ends { t, .. } => {
                self.ends = Ends::of(record);
                self.ends_read = self.ends_read.max(*t);
            }
            Record::EndsSame { t } => self.ends_read = self.ends_read.max(*t),
            Record::Start { version, .. } if *version < VERSION => self.ends_read = f64::INFINITY,
            Record::Ready { t, p, fds } => {
                if let Some(process) = self.processes.get_mut(p) {
                    let since = |fd: &i32| (*fd, process.ready.get(fd).copied().unwrap_or(*t));
                    process.ready = fds.iter().map(since).collect();
                }
            }
            Record::Held { t, p, by, e } => {
                if let Some(process) = self.processes.get_mut(p) {
                    let locks = e.iter().map(|&(waiter, at, holder)| (waiter, (at, holder))).collect();
                    process.held = Some(HeldLocks { t: *t, by: *by, locks });
                }
            }
            Record::Goroutines { t, p, e } => self.goroutines(*p, *t, e),
            Record::Back { t, p, fd, s, q } => {
                if let Some(process) = self.processes.get_mut(p) {
                    process.backs.insert(*fd, (*t, *s, q.clone()));
                }
            }
            Record::Unreaped { t, p, c } => {
                if let Some(process) = self.processes.get_mut(p) {
                    process.unreaped = (*t, c.clone());
                }
            }
            Record::Gone { t, p, i } => self.gone(Id { pid: *p, tid: *i }, *t),
            Record::Stopped { p, i, .. } => {
                if let Some(thread) = self.threads.get_mut(&Id { pid: *p, tid: *i }) {
                    thread.stopped = true;
                }
            }
            Record::Tick { t, .. } => {
                self.now = *t;
                self.find_gates();
            }
            Record::Start { .. }
            | Record::Connections { .. }
            | Record::Marks { .. }
            | Record::Mark { .. }
            | Record::End { .. } => {}
        }
        None
    }

    fn goroutines(&mut self, pid: i32, t: f64, list: &[Locked]) {
        let lost = self.lost(pid, t);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let before = std::mem::take(&mut process.goroutines);
        let since = |new: &Locked| {
            let same = |(old, ..): &&(Locked, f64, f64)| (old.g, old.at, old.n) == (new.g, new.at, new.n);
            before.iter().find(same).map_or((t, lost), |(_, since, lost)| (*since, *lost))
        };
        let known = list.iter().map(|new| (new, since(new)));
        process.goroutines = known.map(|(new, (since, lost))| (new.clone(), since, lost)).collect();
    }

    /// What all threads of a process lost together by now, s.
    pub fn lost(&self, pid: i32, now: f64) -> f64 {
        let of = self.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX });
        of.map(|(_, thread)| thread.lost(now)).sum()
    }

    fn waits(&mut self, wait: &WaitFacts) {
        let id = Id { pid: wait.p, tid: wait.i };
        let Some(thread) = self.threads.get_mut(&id) else { return };
        if thread.wait.as_ref().is_some_and(|old| old.named_owner() != wait.named_owner()) {
            thread.same_owner_since = wait.t;
        }
        thread.wait = Some(wait.clone());
        if wait.named_owner().is_none() {
            return;
        }
        let Some(thread) = self.threads.get(&id) else { return };
        let end = chain_end(self, thread).map(|end| (end.id, end.lost(wait.t)));
        let known = thread.owed_by.filter(|known| end.is_some_and(|end| end.0 == known.0));
        if let Some(thread) = self.threads.get_mut(&id) {
            thread.owed_by = known.or(end);
        }
    }

    /// Whether the thread at the end of the chain of holders had so many seconds since the lock was
    /// last seen to change hands, without those in which the machine kept it from running.
    pub fn had_time(&self, waiter: &Thread, holder: &Thread, seconds: f64) -> bool {
        let Some((_, lost)) = waiter.owed_by.filter(|(id, _)| *id == holder.id) else { return false };
        let since = waiter.since.max(waiter.same_owner_since);
        self.now - since - (holder.lost(self.now) - lost) >= seconds
    }

    fn saw(&mut self, sight: &Sight) -> (Seen, Option<Sight>) {
        let id = Id { pid: sight.p, tid: sight.i };
        // One that has ended and was not waited for does nothing any more.
        if matches!(sight.st, 'Z' | 'X') {
            self.gone(id, sight.t);
            return (Seen::Same, None);
        }
        let left_lock = self.left_lock(id);
        let process = self.processes.entry(id.pid).or_default();
        process.threads.insert(id.tid);
        if let Some(inner) = sight.ni {
            process.inner.insert(inner, id.tid);
        }
        let Some(thread) = self.threads.get_mut(&id) else {
            let comm = sight.comm.clone().unwrap_or_default();
            let thread = Thread {
                id,
                comm,
                sight: sight.clone(),
                wait: None,
                since: sight.t,
                same_owner_since: sight.t,
                stopped: false,
                halted: 0.0,
                stopped_since: None,
                starved_since: None,
                busy: None,
                owed_by: None,
                left_lock: None,
            };
            self.threads.insert(id, thread);
            return (Seen::New, None);
        };
        if let Some(comm) = &sight.comm {
            thread.comm.clone_from(comm);
        }
        let old = std::mem::replace(&mut thread.sight, sight.clone());
        if is_halted(old.st) {
            thread.halted += (sight.t - old.t).max(0.0);
        }
        let is_stopped = (old.st, sight.st) == ('T', 'T') && old.run == sight.run;
        thread.stopped_since = is_stopped.then(|| thread.stopped_since.unwrap_or(old.t));
        thread.starved_since = if (old.st, sight.st) == ('R', 'R') && (old.run, old.wt) == (sight.run, sight.wt) {
            thread.starved_since.or(Some(old.t))
        } else {
            None
        };
        // Over all that time: when in a scan a thread is read differs from scan to scan.
        let wanted = |from: &Sight| from.run.saturating_add(from.wt);
        let is_busy = |(since, before): &(f64, u64)| {
            wanted(sight).saturating_sub(*before) as f64 / 1e9 >= BUSY_SHARE * (sight.t - since)
        };
        let busy = thread.busy.filter(is_busy).or_else(|| Some((old.t, wanted(&old))).filter(is_busy));
        thread.busy = busy.filter(|_| sight.st != 'S');
        let same_call = (old.nr, old.a0, old.pc) == (sight.nr, sight.a0, sight.pc) && old.st == 'S' && sight.st == 'S';
        // Of one that is awake the kernel does not say where it is.
        let same_place = old.sp == sight.sp || sight.st != 'S' && sight.sp == 0;
        let stirred = thread.stopped && sight.run - old.run.min(sight.run) < STIRS_NS && same_place;
        if sight.exec == 0 && same_call && (old.v == sight.v || stirred) {
            thread.stopped = false;
            return (Seen::Same, Some(old));
        }
        // Between a stop and the sleep that continues it the thread is seen awake.
        if stirred && sight.st != 'S' && sight.exec == 0 {
            thread.sight = old.clone();
            return (Seen::Same, Some(old));
        }
        // One of which only its times were read, and that has not run since, slept then already.
        let slept = old.st == '?' && sight.st == 'S' && (old.run, old.sl) == (sight.run, sight.sl);
        let since = if slept { thread.since } else { sight.t };
        (thread.wait, thread.since, thread.same_owner_since, thread.owed_by) = (None, since, sight.t, None);
        thread.stopped = false;
        if sight.exec != 0 {
            thread.left_lock = None;
            process.has_gates = false;
            process.held = None;
            process.goroutines.clear();
            process.backs.clear();
            return (Seen::Exec, Some(old));
        }
        thread.left_lock = left_lock.or(thread.left_lock);
        (Seen::Ran, Some(old))
    }

    fn gone(&mut self, id: Id, t: f64) {
        let is_let_through = self.is_let_through(id);
        if self.threads.remove(&id).is_some()
            && let Some(process) = self.processes.get_mut(&id.pid)
        {
            process.thread_ended = t;
            process.has_gates |= is_let_through;
        }
        if let Some(process) = self.processes.get_mut(&id.pid) {
            process.threads.remove(&id.tid);
            process.inner.retain(|_, tid| *tid != id.tid);
            if process.threads.is_empty() {
                self.processes.remove(&id.pid);
            }
        }
    }

    /// For how long a thread of a process that could run has got no CPU by now, s.
    pub fn starves(&self, pid: i32) -> f64 {
        let of = self.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX });
        of.filter_map(|(_, thread)| thread.starved_since).map(|since| self.now - since).fold(0.0, f64::max)
    }

    /// Whether a thread of a process used the CPU, or could have, when it was seen last.
    pub fn runs(&self, pid: i32) -> bool {
        let of = self.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX });
        of.map(|(_, thread)| thread).any(|thread| thread.sight.st == 'R')
    }

    /// The lock of its runtime's that a sleeping thread waits for, with its holder and when that
    /// was read: before the last scan, and since the thread came to rest.
    pub fn held_lock(&self, thread: &Thread) -> Option<(&HeldLocks, u64, Id)> {
        let held = self.processes.get(&thread.id.pid)?.held.as_ref()?;
        let is_known = thread.sleeps() && thread.since <= held.t && held.t < self.now;
        let &(at, holder) = held.locks.get(&thread.id.tid).filter(|_| is_known)?;
        let holder = Id { pid: thread.id.pid, tid: holder };
        self.threads.contains_key(&holder).then_some((held, at, holder))
    }

    /// The thread that a process means by an id in its own memory.
    pub fn named_by(&self, pid: i32, tid: i32) -> Option<Id> {
        let process = self.processes.get(&pid)?;
        let tid = if process.inner.is_empty() { tid } else { *process.inner.get(&tid)? };
        process.threads.contains(&tid).then_some(Id { pid, tid })
    }

    /// A process' id as its own threads know it.
    pub fn own_id(&self, pid: i32) -> i32 {
        let inner = self.processes.get(&pid).and_then(|p| p.inner.iter().find(|(_, tid)| **tid == pid));
        inner.map_or(pid, |(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_busy_whenever_in_a_scan_it_is_read() {
        let (mut facts, id) = (Facts::default(), Id { pid: 1, tid: 1 });
        let saw = |t: f64, run: f64, st| {
            Record::Thread(Sight { t, p: 1, i: 1, run: (run * 1e9) as u64, st, ..Sight::default() })
        };
        // Read late in each second scan: by turns a third and the double of the time is seen used.
        for nth in 0..40 {
            let t = f64::from(nth) * 0.08;
            let late = if nth % 2 == 1 { 0.05 } else { 0.0 };
            facts.take(&saw(t, t + late, 'R'));
        }
        let computes = |facts: &Facts, now| facts.threads[&id].computes_for(now, 1.0);
        assert!(computes(&facts, 3.2));
        facts.take(&saw(3.3, 3.3, 'S'));
        assert!(!computes(&facts, 5.0), "asleep");
        facts.take(&saw(5.0, 3.4, 'R'));
        facts.take(&saw(7.0, 3.5, 'R'));
        assert!(!computes(&facts, 7.0), "seen awake by luck");
    }
}
