//! Unanswered: a request was read from an accepted connection, and nothing went out for longer than
//! any answer took.
//!
//! Finds hangs inside runtimes without knowing them: a goroutine, a Java monitor, a coroutine or a
//! regular expression that never ends. A guess; likely where several came after the last answer,
//! the oldest of them waits for twice as long, on a port that was seen to answer, and no thread of
//! the process has been at its event loop since. A server that is back there and owes answers is
//! the usual long poll (a queue's workers, subscribers); so is one that answers others. Connections
//! that only ever take in (a collector of logs) are owed nothing. Left out: a process with a ring
//! of locks, or a thread that waits for its own, which is a closed set.

use super::{Key, Verdict, Why};
use crate::facts::Facts;
use crate::history::{History, Port};
use crate::limits::Limits;
use crate::wakers::chain_end;
use orbit_inspect::Sure;

/// Exchanges after which it is known how a port answers.
const EXCHANGES: u64 = 20;

/// See the module's head.
pub fn unanswered(facts: &Facts, history: &History, limits: &Limits) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (&pid, learnt) in history.processes.iter().filter(|(pid, _)| facts.processes.contains_key(pid)) {
        // The kernel counts a wait for a CPU only once it is over.
        let queue = learnt.queue + (facts.starves(pid) * 1e9) as u64;
        let knows_loop = history.returns(pid) >= limits.returns;
        for (&number, port) in &learnt.ports.ports {
            if port.ended < EXCHANGES && !knows_loop {
                continue;
            }
            let was_home = |since: f64| history.was_at_event_loop(pid, since);
            let verdict = of(pid, number, port, facts.now, queue, limits, &was_home);
            verdicts.extend(verdict.filter(|_| !has_ring(facts, pid)));
        }
    }
    verdicts
}

/// Whether threads of the process wait for one another's locks, or one for its own.
fn has_ring(facts: &Facts, pid: i32) -> bool {
    facts.threads.values().any(|thread| thread.id.pid == pid && chain_end(facts, thread).is_none())
}

fn of(
    pid: i32,
    number: u16,
    port: &Port,
    now: f64,
    queue: u64,
    limits: &Limits,
    was_home: &dyn Fn(f64) -> bool,
) -> Option<Verdict> {
    let allowed = limits.limit.max(limits.longest_times * port.longest);
    let age = |since: f64, before: u64| now - since - queue.saturating_sub(before) as f64 / 1e9;
    let late: Vec<f64> =
        port.waiting.values().map(|request| age(request.since, request.queue)).filter(|age| *age > allowed).collect();
    let oldest = late.iter().copied().fold(f64::NAN, f64::max);
    if late.is_empty() {
        return None;
    }
    let later = port.waiting.values().filter(|request| request.since > port.last_answer);
    let unseen: Vec<f64> =
        later.map(|request| age(request.since, request.queue)).filter(|age| *age > allowed).collect();
    let lasts = unseen.iter().any(|age| *age > limits.likely_times * allowed);
    let is_likely = port.answered > 0 && unseen.len() > 1 && lasts && !was_home(now - oldest);
    let sure = if is_likely { Sure::Likely } else { Sure::Guess };
    let why = Why::Unanswered { port: number, requests: late.len(), oldest, longest: port.longest };
    let key = Key::Unanswered(pid, number);
    Some(Verdict { key, sure, threads: Vec::new(), since: now - oldest, allowed, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Record, Sight};

    /// A server at a port that answers reads a request at 10 s, and is next seen at 17 s: its only
    /// thread wants to run, and used `run` ns of CPU since.
    fn judged(run: u64) -> Vec<Verdict> {
        let (mut facts, mut history) = (Facts::default(), History::default());
        let mut take = |record: &Record| history.take(&mut facts, record);
        let connections = |t: f64, received: u32, sent: u32, bytes: u64| {
            let listener = (3, 80, 0, 1, 0, 0, 0, 0, 0, 10);
            Record::Connections { t, p: 1, c: vec![listener, (4, 80, 9, 0, received, sent, bytes, bytes, 0, 1)] }
        };
        let sight =
            |t: f64, run: u64| Record::Thread(Sight { t, p: 1, i: 1, run, st: 'R', nr: -1, ..Sight::default() });
        for i in 1..=EXCHANGES {
            take(&connections(i as f64 / 10.0, 20, 0, i));
        }
        take(&sight(10.0, 7));
        take(&connections(10.0, 0, 9000, EXCHANGES + 1));
        take(&sight(17.0, 7 + run));
        take(&Record::Tick { t: 17.0, us: 0 });
        unanswered(&facts, &history, &Limits::default())
    }

    #[test]
    fn a_server_that_gets_no_cpu_owes_nothing() {
        assert_eq!(judged(1).len(), 1, "it ran, and did not answer");
        assert_eq!(judged(0).len(), 0);
    }
}
