//! Owed: a thread waits for an answer on a connection that its process opened, for longer than any
//! answer took and than the limit.
//!
//! Finds a server that mostly waits for its back end, where the read for the answer is a home of
//! its thread: when the back end stops it is in its usual place. A guess, for whoever asks for what
//! may come at any time (BLPOP, a long poll) waits alike; likely where all of the other side is
//! stopped. Left out: another side that runs, that went back for events of this connection too (it
//! has read the request, and answers when it can), that sleeps by the clock, or that is watched
//! too, whose port is judged (`unanswered`); and threads that wait for several things, or with a
//! time limit.

use super::{Key, Verdict, Why};
use crate::facts::{Back, Facts, Id, Thread};
use crate::history::{History, Waiting, reads};
use crate::limits::Limits;
use orbit_inspect::Sure;

/// Answers after which it is known how a port answers.
const ANSWERS: u64 = 20;

/// See the module's head.
pub fn owed(facts: &Facts, history: &History, limits: &Limits) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (&pid, learnt) in history.processes.iter().filter(|(pid, _)| facts.processes.contains_key(pid)) {
        for (&number, port) in &learnt.ports.asked {
            let allowed = limits.limit.max(limits.longest_times * port.longest);
            for (key, request) in port.waiting.iter().filter(|(_, request)| facts.now - request.since > allowed) {
                if history.processes.values().any(|other| other.ports.is_asked_at(key.0, key.1)) {
                    continue;
                }
                let Some(thread) = waiter(facts, pid, request) else { continue };
                let knows_loop = history.threads.get(&thread.id).is_some_and(|habit| habit.is_learnt(limits));
                if port.answered >= ANSWERS || knows_loop {
                    verdicts.extend(of(facts, thread, (number, request, port.longest), allowed));
                }
            }
        }
    }
    verdicts
}

/// The thread that sleeps in a read of the connection, and in nothing else.
fn waiter<'a>(facts: &'a Facts, pid: i32, request: &Waiting) -> Option<&'a Thread> {
    let of = facts.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX });
    let waits = |thread: &&Thread| {
        let has_limit = thread.wait.as_ref().is_none_or(|wait| wait.tl);
        thread.sleeps() && reads(&thread.sight) && thread.sight.a0 as i32 == request.fd && !has_limit
    };
    of.map(|(_, thread)| thread).find(waits)
}

fn of(facts: &Facts, thread: &Thread, asked: (u16, &Waiting, f64), allowed: f64) -> Option<Verdict> {
    let (port, request, longest) = asked;
    let process = facts.processes.get(&thread.id.pid)?;
    let back = process.backs.get(&request.fd).filter(|(t, ..)| *t >= request.since);
    let back = back.map(|(_, back, pids)| (*back, pids.clone()));
    let sure = match &back {
        Some((Back::Works | Back::Serves | Back::Naps, _)) => return None,
        None | Some((Back::Waits | Back::Unknown, _)) => Sure::Guess,
        Some((Back::Stopped, _)) => Sure::Likely,
    };
    let waited = facts.now - request.since;
    let why = Why::Owed { port, fd: request.fd, waited, longest, back };
    let key = Key::Owed(thread.id);
    Some(Verdict { key, sure, threads: vec![thread.id], since: request.since, allowed, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Record, Sight, WaitFacts};

    /// A process asked at a port 20 times, which answered at once, and waits since 10 s; at 17 s
    /// the other side is seen like this.
    fn judged(back: Option<Back>, nr: i64) -> Vec<Verdict> {
        let (mut facts, mut history) = (Facts::default(), History::default());
        let mut take = |record: &Record| history.take(&mut facts, record);
        let asked = |t: f64, sent: u32, n: u64| Record::Connections {
            t,
            p: 1,
            c: vec![(4, 40_000, 9, 0, sent, sent, n, n + 1, 0, 1)],
        };
        for n in 1..=ANSWERS + 1 {
            take(&asked(n as f64 / 4.0, 10, n));
        }
        take(&Record::Thread(Sight { t: 10.0, p: 1, i: 1, st: 'S', nr, a0: 4, ..Sight::default() }));
        take(&Record::Wait(WaitFacts { t: 10.2, p: 1, i: 1, nr, ..WaitFacts::default() }));
        take(&asked(9.9, 0, ANSWERS + 2));
        take(&asked(17.0, 7100, ANSWERS + 2));
        if let Some(s) = back {
            take(&Record::Back { t: 16.0, p: 1, fd: 4, s, q: vec![7] });
        }
        take(&Record::Tick { t: 17.0, us: 0 });
        owed(&facts, &history, &Limits::default())
    }

    #[test]
    fn it_is_said_of_another_side_that_does_nothing_for_it() {
        let sure = |back| judged(back, libc::SYS_recvfrom).first().map(|verdict| verdict.sure);
        assert_eq!([None, Some(Back::Unknown), Some(Back::Waits)].map(sure), [Some(Sure::Guess); 3]);
        assert_eq!(sure(Some(Back::Stopped)), Some(Sure::Likely));
        assert_eq!([Back::Works, Back::Serves, Back::Naps].map(|back| sure(Some(back))), [None; 3]);
        assert!(judged(None, libc::SYS_epoll_wait).is_empty(), "it waits for more than the answer");
    }
}
