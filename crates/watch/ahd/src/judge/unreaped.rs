//! Unreaped: a process catches SIGCHLD, a child of it has exited, and it waits for signals or
//! events without a time limit instead of asking for the child.
//!
//! The signal came between the check and the wait (`pause`, `select`), or was one for two children:
//! no other comes. A guess: a program may leave such children until it has something else to do.
//! Left out: programs that do not catch SIGCHLD, and Go's, whose runtime catches every signal; a
//! process any of whose threads ran within the limit.

use super::{Key, Verdict, Why};
use crate::facts::{Facts, Id, Process, Thread};
use crate::history::History;
use crate::limits::Limits;
use orbit_inspect::Sure;

const SIGCHLD: u64 = 1 << (libc::SIGCHLD - 1);
/// Go's runtime catches it for itself.
const SIGURG: u64 = 1 << (libc::SIGURG - 1);

/// See the module's head.
pub fn unreaped(facts: &Facts, _: &History, limits: &Limits) -> Vec<Verdict> {
    facts.processes.iter().filter_map(|(pid, process)| of(facts, *pid, process, limits)).collect()
}

fn of(facts: &Facts, pid: i32, process: &Process, limits: &Limits) -> Option<Verdict> {
    let (read, pids) = &process.unreaped;
    if pids.is_empty() || process.caught & (SIGCHLD | SIGURG) != SIGCHLD {
        return None;
    }
    let threads = process.threads.iter().map(|tid| facts.threads.get(&Id { pid, tid: *tid }));
    let threads: Vec<&Thread> = threads.collect::<Option<_>>()?;
    let rests = |thread: &&Thread| thread.idle_for(facts.now, limits.limit) && thread.since <= *read;
    if !threads.iter().all(rests) {
        return None;
    }
    let thread = threads.into_iter().find(|thread| waits_for_signals_or_events(thread))?;
    let (waited, call) = (facts.now - thread.since, thread.sight.nr);
    Some(Verdict {
        key: Key::Unreaped(thread.id),
        sure: Sure::Guess,
        threads: vec![thread.id],
        since: thread.since,
        allowed: limits.limit,
        why: Why::Unreaped { call, waited, pids: pids.clone() },
    })
}

/// Whether a thread is in such a call, without a time limit.
fn waits_for_signals_or_events(thread: &Thread) -> bool {
    let Some(wait) = &thread.wait else { return false };
    match thread.sight.nr {
        libc::SYS_pause | libc::SYS_rt_sigsuspend => true,
        libc::SYS_select | libc::SYS_pselect6 => wait.a[4] == 0,
        libc::SYS_poll => (wait.a[2] as i32) < 0,
        libc::SYS_ppoll => wait.a[2] == 0,
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => (wait.a[3] as i32) < 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Record, Sight, WaitFacts};

    /// A process that catches these signals has been in this call from 1 s on; its children were
    /// read at 2 s. Judged at 8 s.
    fn judged(cgt: u64, nr: i64, limit: u64, c: &[i32]) -> Vec<Verdict> {
        let mut facts = Facts::default();
        let (exe, cmd) = (String::new(), String::new());
        facts.take(&Record::Process { t: 1.0, p: 1, pp: 0, exe, cmd, cgt, unsure: Vec::new() });
        facts.take(&Record::Thread(Sight { t: 1.0, p: 1, i: 1, st: 'S', nr, ..Sight::default() }));
        let a = [0, 0, limit, 0, limit, 0];
        facts.take(&Record::Wait(WaitFacts { t: 1.5, p: 1, i: 1, nr, a, ..WaitFacts::default() }));
        facts.take(&Record::Unreaped { t: 2.0, p: 1, c: c.to_vec() });
        facts.take(&Record::Tick { t: 8.0, us: 0 });
        unreaped(&facts, &History::default(), &Limits::default())
    }

    #[test]
    fn a_child_that_exited_before_the_wait_for_its_signal() {
        for nr in [libc::SYS_pause, libc::SYS_rt_sigsuspend, libc::SYS_select, libc::SYS_ppoll] {
            let found = judged(SIGCHLD, nr, 0, &[7, 8]);
            assert_eq!(found.len(), 1, "{nr}: {found:?}");
            assert_eq!((found[0].sure, found[0].since), (Sure::Guess, 1.0));
        }
        assert_eq!(judged(SIGCHLD, libc::SYS_poll, u64::MAX, &[7]).len(), 1);
    }

    #[test]
    fn what_is_left_out() {
        assert_eq!(judged(SIGCHLD, libc::SYS_pause, 0, &[]), [], "no such child");
        assert_eq!(judged(0, libc::SYS_pause, 0, &[7]), [], "it waits for another signal");
        assert_eq!(judged(SIGCHLD | SIGURG, libc::SYS_pause, 0, &[7]), [], "a runtime catches all");
        assert_eq!(judged(SIGCHLD, libc::SYS_select, 1, &[7]), [], "a time limit");
        assert_eq!(judged(SIGCHLD, libc::SYS_read, 0, &[7]), [], "another wait");
    }
}
