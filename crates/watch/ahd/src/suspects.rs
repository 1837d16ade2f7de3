//! The threads that a report names.
//!
//! Owns: [`involved`], by the facts, and [`choose_suspects`], by their stacks. Promises: the first
//! thread of a process without answers is always among them. Pure.

use crate::event::Involved;
use crate::facts::{Facts, Id, Thread};
use crate::history::{History, serves};
use crate::judge::{Key, Verdict, Why};
use crate::wakers::{Wakers, wakers};
use orbit_inspect::stacks::fold::is_of_system;

/// Threads of a process without answers whose stacks are taken, beside its first, and those that
/// are named: what a thread is in its stack says.
const SUSPECTS: usize = 31;
const NAMED_SUSPECTS: usize = 8;
/// Time between the first sight of a thread's sleep and of what it sleeps for, s.
const ABOUT: f64 = 0.3;

/// The threads of a verdict, the one to blame first. Of a port without answers: threads of its
/// process that run, then those that wait for another process, then those that went to sleep since
/// the request came, the first of them first, then others that are not where they wait for work.
/// Its first thread is always among them.
pub(crate) fn involved(verdict: &Verdict, facts: &Facts, history: &History) -> Vec<Id> {
    if !verdict.threads.is_empty() {
        let mut ids = verdict.threads.clone();
        ids.extend(at_the_same_word(verdict, facts, history));
        return ids;
    }
    let (pid, port) = match verdict.key {
        Key::Unanswered(pid, port) => (pid, port),
        // Goroutines are on no thread while they wait.
        Key::Goroutines(pid) => return vec![Id { pid, tid: pid }],
        _ => return Vec::new(),
    };
    let of = facts.threads.range(Id { pid, tid: i32::MIN }..=Id { pid, tid: i32::MAX });
    // By the clock: the verdict's time is without what its threads waited for a CPU.
    let port = history.processes.get(&pid).and_then(|process| process.ports.ports.get(&port));
    let asked = port.map_or(verdict.since, |port| port.waiting.values().map(|r| r.since).fold(verdict.since, f64::min));
    // A thread is seen to sleep, and a request to have come, within a scan of each other.
    let before = |thread: &Thread| thread.since < asked - ABOUT;
    let at_work = |(id, thread): &(&Id, &Thread)| {
        let at_home = history.threads.get(*id).is_some_and(|h| h.at_home);
        !(at_home && before(thread) || thread.sleeps() && serves(&thread.sight))
    };
    let mut all: Vec<&Thread> = of.filter(at_work).map(|(_, t)| t).collect();
    let waits_for_process =
        |t: &Thread| matches!(wakers(facts, t), Wakers::Only { processes, .. } if !processes.is_empty());
    let order = |t: &Thread| (t.sleeps(), !waits_for_process(t), before(t));
    all.sort_by(|a, b| order(a).cmp(&order(b)).then(a.since.total_cmp(&b.since)));
    let mut ids: Vec<Id> = all.into_iter().map(|t| t.id).take(SUSPECTS).collect();
    let first = Id { pid, tid: pid };
    if !ids.contains(&first) {
        ids.push(first);
    }
    ids
}

/// Of a thread that left its loop for a lock: others that sleep at the same word, one of which may
/// be the one that has it.
fn at_the_same_word(verdict: &Verdict, facts: &Facts, history: &History) -> Vec<Id> {
    let (Why::LoopLeft { call: Some(libc::SYS_futex), .. }, Some(id)) = (&verdict.why, verdict.threads.last()) else {
        return Vec::new();
    };
    let Some(word) = facts.threads.get(id).map(|thread| thread.sight.a0) else { return Vec::new() };
    let of = facts.threads.range(Id { pid: id.pid, tid: i32::MIN }..=Id { pid: id.pid, tid: i32::MAX });
    let is_there = |(other, thread): &(&Id, &Thread)| {
        let at_home = history.threads.get(*other).is_some_and(|h| h.at_home);
        thread.sleeps() && thread.sight.nr == libc::SYS_futex && thread.sight.a0 == word && !at_home
    };
    of.filter(is_there).map(|(other, _)| *other).filter(|other| !verdict.threads.contains(other)).collect()
}

/// Of the threads of a process without answers those that are in functions of the program, and its
/// first one. Those that a runtime keeps for itself sleep and wake as they like: they are suspects
/// only where there is nobody else.
pub(crate) fn choose_suspects(taken: &mut Vec<Involved>) {
    let is_first = |thread: &Involved| thread.tid == thread.pid;
    if taken.iter().any(|thread| is_in_own_function(thread) && !is_first(thread)) {
        taken.retain(|thread| is_in_own_function(thread) || is_first(thread));
    }
    let mut room = NAMED_SUSPECTS - 1;
    taken.retain(|thread| {
        let stays = is_first(thread) || room > 0;
        room -= usize::from(stays && !is_first(thread));
        stays
    });
}

/// Whether a thread is in a function of the program.
fn is_in_own_function(thread: &Involved) -> bool {
    !thread.python.is_empty() || thread.stack.iter().any(|frame| !is_of_system(frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_inspect::Sure;
    use orbit_inspect::stacks::Frame;

    fn thread(tid: i32, module: &str) -> Involved {
        let frame = Frame {
            address: 0,
            module: module.to_owned(),
            function: Some("f".to_owned()),
            file: None,
            line: None,
            offset: 0,
            inlined: false,
            sure: Sure::Certain,
            cfa: None,
        };
        Involved {
            pid: 1,
            tid,
            comm: String::new(),
            python_name: None,
            does: String::new(),
            stack: vec![frame],
            python: Vec::new(),
            note: None,
        }
    }

    fn chosen(mut all: Vec<Involved>) -> Vec<i32> {
        choose_suspects(&mut all);
        all.iter().map(|thread| thread.tid).collect()
    }

    #[test]
    fn threads_of_the_runtime_alone_give_way_and_the_first_thread_stays() {
        let (of_jvm, own) = ("/usr/lib/jvm/libjvm.so", "Java");
        let all = || vec![thread(2, of_jvm), thread(3, own), thread(4, of_jvm), thread(5, own), thread(1, of_jvm)];
        assert_eq!(chosen(all()), [3, 5, 1]);
        assert_eq!(chosen(vec![thread(2, of_jvm), thread(1, own)]), [2, 1], "there is nobody else");
        let many: Vec<Involved> = (2..40).map(|tid| thread(tid, own)).chain([thread(1, of_jvm)]).collect();
        assert_eq!(chosen(many), [2, 3, 4, 5, 6, 7, 8, 1]);
    }
}
