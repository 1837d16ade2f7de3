//! Stopped: a thread waits for another process, all of whose threads a signal has stopped.
//!
//! A child that stops itself (SIGTTIN, SIGTSTP) is waited for without an end by a parent that waits
//! for its exit, or reads what it writes. A guess: whoever stopped it may continue it. Left out:
//! processes that a debugger has, and parents that ask to be informed of stops (WUNTRACED).

use super::{Key, Verdict, Why};
use crate::facts::{Facts, Id, Thread};
use crate::history::History;
use crate::limits::Limits;
use crate::wakers::{How, Wakers, wakers};
use orbit_inspect::Sure;

/// See the module's head.
pub fn stopped(facts: &Facts, _: &History, limits: &Limits) -> Vec<Verdict> {
    facts.threads.values().filter_map(|thread| of(facts, thread, limits)).collect()
}

fn of(facts: &Facts, thread: &Thread, limits: &Limits) -> Option<Verdict> {
    let is_limited = thread.wait.as_ref().is_none_or(|wait| wait.tl);
    if !thread.sleeps() || is_limited || thread.sight.nr == libc::SYS_wait4 && asks_for_stops(thread) {
        return None;
    }
    let Wakers::Only { threads, processes, how } = wakers(facts, thread) else { return None };
    let others = match how {
        How::Child if thread.sight.nr == libc::SYS_wait4 && thread.sight.a0 as i32 > 0 => {
            vec![translated(facts, &processes, thread.sight.a0 as i32)?]
        }
        _ => processes,
    };
    if !threads.is_empty() || others.is_empty() || others.contains(&thread.id.pid) {
        return None;
    }
    let mut since = thread.since;
    for pid in &others {
        let process = facts.processes.get(pid).filter(|process| !process.threads.is_empty())?;
        for tid in &process.threads {
            since = since.max(facts.threads.get(&Id { pid: *pid, tid: *tid })?.stopped_since?);
        }
    }
    let waited = facts.now - since;
    (waited > limits.limit).then(|| Verdict {
        key: Key::Stopped(thread.id),
        sure: Sure::Guess,
        threads: std::iter::once(thread.id).chain(others.iter().map(|pid| Id { pid: *pid, tid: *pid })).collect(),
        since,
        allowed: limits.limit,
        why: Why::Stopped { how, waited, pids: others },
    })
}

fn asks_for_stops(thread: &Thread) -> bool {
    thread.sight.a2 as i32 & libc::WUNTRACED != 0
}

/// The child of an id that is one of its parent's namespace.
fn translated(facts: &Facts, children: &[i32], id: i32) -> Option<i32> {
    let inner = |pid: &i32| facts.processes.get(pid).is_some_and(|process| process.inner.get(&id) == Some(pid));
    children.iter().copied().find(|pid| *pid == id).or_else(|| children.iter().copied().find(inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Record, Sight, WaitFacts};

    /// A parent waits for its child, whose thread is in this state, from 1 s on; judged at 8 s.
    fn judged(child: char, options: u64, waits_for: u64) -> Vec<Verdict> {
        let mut facts = Facts::default();
        for (p, pp) in [(1, 0), (2, 1), (3, 1)] {
            let (exe, cmd) = (String::new(), String::new());
            facts.take(&Record::Process { t: 1.0, p, pp, exe, cmd, cgt: 0, unsure: Vec::new() });
        }
        // A stopped thread is read in each scan.
        for t in 1..=8 {
            let t = f64::from(t);
            for (pid, st) in [(1, 'S'), (2, child), (3, 'S')] {
                let (nr, a0, a2) = if pid == 1 { (libc::SYS_wait4, waits_for, options) } else { (-1, 0, 0) };
                facts.take(&Record::Thread(Sight { t, p: pid, i: pid, st, nr, a0, a2, ..Sight::default() }));
            }
        }
        let (nr, a) = (libc::SYS_wait4, [waits_for, 0, options, 0, 0, 0]);
        facts.take(&Record::Wait(WaitFacts { t: 8.0, p: 1, i: 1, nr, a, ..WaitFacts::default() }));
        facts.take(&Record::Tick { t: 8.0, us: 0 });
        stopped(&facts, &History::default(), &Limits::default())
    }

    #[test]
    fn a_parent_that_waits_for_a_stopped_child() {
        let found = judged('T', 0, 2);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].sure, found[0].threads[1].pid), (Sure::Guess, 2));
        assert_eq!(judged('S', 0, 2), [], "the child sleeps");
        assert_eq!(judged('t', 0, 2), [], "a debugger has it");
        assert_eq!(judged('T', libc::WUNTRACED as u64, 2), [], "the parent is informed of stops");
        assert_eq!(judged('T', 0, u64::MAX), [], "another child sleeps");
    }
}
