//! Loop left: a thread that kept coming back to a place where work comes in has not been there for
//! longer than ever.
//!
//! A guess: one job may simply take longer than all before. Likely once an event loop is left for
//! twice as long while input waits that nobody takes: input of a worker or a filter may wait for a
//! long job to end. Left out: a thread that is blocked by a lock whose holder itself waits for
//! work, for then it is the turn of others; one in a ring of locks, which is a closed set; and one
//! that sleeps for others that work, or for the clock: see [`comes_back`].

use super::{Key, Verdict, Why, others_work};
use crate::facts::{Facts, Id, Thread};
use crate::history::{Habit, History, naps, serves, waits_for_lock};
use crate::limits::Limits;
use crate::wakers::{How, Wakers, chain_end, wakers};
use orbit_inspect::Sure;

/// See the module's head.
pub fn loop_left(facts: &Facts, history: &History, limits: &Limits) -> Vec<Verdict> {
    let of = |(id, thread): (&Id, &Thread)| {
        let habit = history.threads.get(id)?;
        let (last, _) = habit.last_home?;
        // Stopped, traced or in an uninterruptible wait is not the program's doing; '?' is not
        // known.
        if habit.at_home || !habit.is_learnt(limits) || thread.is_halted() || thread.sight.st == '?' {
            return None;
        }
        let away = habit.away(facts.now, thread.lost(facts.now));
        let allowed = limits.limit.max(limits.longest_times * habit.longest);
        if away <= allowed {
            return None;
        }
        if comes_back(facts, thread, habit, limits) {
            return None;
        }
        // A ring of locks, or its own lock: the judge of closed sets says so, exactly.
        let holder = chain_end(facts, thread)?;
        let mut threads = vec![*id];
        if thread.idle_for(facts.now, limits.still) && thread.sight.nr == libc::SYS_futex && holder.id != thread.id {
            if holder.sleeps() && serves(&holder.sight) {
                return None;
            }
            threads.insert(0, holder.id);
        }
        let process = facts.processes.get(&id.pid)?;
        let unread = |since: f64| since > last.t && facts.now - since > limits.limit - 1.0;
        let waiting: Vec<i32> = process.ready.iter().filter(|(_, t)| unread(**t)).map(|(fd, _)| *fd).collect();
        let lasts = away > limits.likely_times * allowed;
        let sure = if lasts && habit.is_event_loop && !waiting.is_empty() { Sure::Likely } else { Sure::Guess };
        let call = thread.sleeps().then_some(thread.sight.nr);
        let why = Why::LoopLeft { away, longest: habit.longest, returns: habit.returns, call, waiting };
        Some(Verdict { key: Key::Left(*id), sure, threads, since: facts.now - away, allowed, why })
    };
    facts.threads.iter().filter_map(of).collect()
}

/// Whether a thread sleeps for what comes without it: the work of another running thread of its
/// process, or of the process at the other end of its read or write; or, if it left no event loop,
/// the end of a nap or of a time limit.
fn comes_back(facts: &Facts, thread: &Thread, habit: &Habit, limits: &Limits) -> bool {
    let sight = &thread.sight;
    if !thread.sleeps() || waits_for_lock(sight) {
        return false;
    }
    // A wait with a time limit that was stopped is continued by the second call.
    let waits_for_thread = matches!(sight.nr, libc::SYS_futex | libc::SYS_restart_syscall);
    let ends_by_clock = naps(sight) || sight.nr == libc::SYS_futex && sight.a3 != 0;
    waits_for_thread && facts.runs(thread.id.pid)
        || ends_by_clock && !habit.is_event_loop && thread.idle_for(facts.now, limits.still)
        || matches!(wakers(facts, thread), Wakers::Only { how: How::Read(_) | How::Write(_), .. })
            && others_work(facts, thread, limits)
}
