//! Who sleeps at locks that keep no owner, and for how long nobody was woken there.
//!
//! Such a lock may go from hand to hand all the while that one thread waits for it: a queue of many on a slow machine. Only if
//! nobody who slept there before this one was woken for long is it held, or forgotten. The kernel wakes those of one word in the order in which they came (real-time
//! threads first), so whoever came later and ran was woken by a signal, or its time was over: that says nothing of the lock. Of two words of one
//! lock, at which its readers and its writers sleep, one may be served first for ever: whoever ran at the other one got the lock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A thread, what it had run when it went to sleep, and the word it sleeps at.
pub(crate) type Waiter = (i32, (u64, u64), u64);

/// Locks remembered of a process; of more, those that stand longest are forgotten.
const MOST: usize = 256;

/// One who sleeps there.
#[derive(Debug)]
struct Place {
    waiter: Waiter,
    /// The look in which it was first seen there. Of those of one look nobody knows who came first.
    came: Instant,
    /// When one was last seen to be woken, or to leave, who did not come after it to the same word.
    since: Instant,
}

#[derive(Debug)]
struct Queue {
    /// When anyone was last seen to be woken there, or to leave.
    changed: Instant,
    /// In order of their ids.
    places: Vec<Place>,
}

/// The queues of one process, by the address of the futex word.
#[derive(Debug, Default)]
pub(crate) struct Queues(BTreeMap<u64, Queue>);

impl Queues {
    /// For how long nobody was seen to be woken at this lock who did not come after this thread to its word, where these sleep now, in order of their ids.
    pub(crate) fn stands(&mut self, lock: u64, tid: i32, waiters: &[Waiter], now: Instant) -> Duration {
        let mut queue = self.0.remove(&lock).unwrap_or(Queue { changed: now, places: Vec::new() });
        let sleeps = |place: &Place| waiters.binary_search(&place.waiter).is_ok();
        let (mut stay, left): (Vec<Place>, Vec<Place>) = queue.places.into_iter().partition(sleeps);
        if !left.is_empty() {
            queue.changed = now;
            let word = |p: &Place| p.waiter.2;
            let before = |p: &Place| left.iter().any(|l| word(l) != word(p) || l.came <= p.came);
            stay.iter_mut().filter(|p| before(p)).for_each(|p| p.since = now);
        }
        queue.places = stay;
        for &waiter in waiters {
            if let Err(at) = queue.places.binary_search_by_key(&waiter, |p| p.waiter) {
                queue.places.insert(at, Place { waiter, came: now, since: queue.changed });
            }
        }
        let own = queue.places.iter().find(|p| p.waiter.0 == tid);
        let stands = own.map_or(Duration::ZERO, |p| now.saturating_duration_since(p.since));
        if self.0.len() >= MOST
            && let Some(oldest) = self.0.iter().min_by_key(|(_, q)| q.changed).map(|(&lock, _)| lock)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(lock, queue);
        stands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_stands_while_nobody_is_woken_there() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut stands = |lock, tid, waiters: &[(i32, (u64, u64))], seconds| {
            let waiters: Vec<Waiter> = waiters.iter().map(|&(tid, had)| (tid, had, lock)).collect();
            queues.stands(lock, tid, &waiters, at(seconds)).as_secs()
        };
        let (one, two, three) = ((1, (5, 5)), (2, (6, 6)), (3, (7, 7)));
        assert_eq!(stands(64, 1, &[one, two], 0), 0);
        assert_eq!(stands(64, 3, &[one, two, three], 2), 2, "one more came, and those before it stand");
        assert_eq!(stands(80, 1, &[one], 2), 0, "another lock");
        assert_eq!(
            stands(64, 1, &[one, (2, (6, 8)), three], 3),
            0,
            "the second was woken, which may have been the first"
        );
        assert_eq!(stands(64, 3, &[one, (2, (6, 8)), three], 4), 1, "that one came before the third");
        assert_eq!(stands(64, 1, &[one, (2, (6, 9)), three], 9), 6, "the second came anew, later than the first");
        assert_eq!(stands(64, 2, &[one, (2, (6, 9)), three], 10), 1, "it was woken itself");
        assert_eq!(stands(64, 2, &[(2, (6, 9)), three], 11), 0, "the first was woken");
        assert_eq!(stands(64, 1, &[(2, (6, 9)), three], 12), 0, "it is not there");
        for lock in 1000..1000 + 2 * MOST as u64 {
            stands(lock, 1, &[one], 13);
        }
        assert_eq!(queues.0.len(), MOST);
    }

    #[test]
    fn whoever_runs_at_the_other_word_of_a_lock_got_it() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        let reader = (1, (5, 5), 64);
        for second in 0..9 {
            // Writers come and go, and come after the reader.
            let all = [reader, (2, (second, second), 68)];
            let stands = queues.stands(64, 1, &all, start + Duration::from_secs(second));
            assert_eq!(stands.as_secs(), 0, "{second}");
        }
        let all = [reader, (2, (8, 8), 68)];
        assert_eq!(queues.stands(64, 1, &all, start + Duration::from_secs(20)).as_secs(), 12, "it stands");
    }
}
