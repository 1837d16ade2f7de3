//! Who sleeps at locks that keep no owner, and for how long nobody was woken there.
//!
//! Such a lock may go from hand to hand all the while that one thread waits for it: a queue of many on a slow machine. Only if
//! nobody who slept there was woken for long is it held, or forgotten.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A thread, and what it had run when it went to sleep.
pub(crate) type Waiter = (i32, (u64, u64));

/// Locks remembered of a process; of more, those that stand longest are forgotten.
const MOST: usize = 256;

#[derive(Debug)]
struct Queue {
    since: Instant,
    waiters: Vec<Waiter>,
}

/// The queues of one process, by the address of the futex word.
#[derive(Debug, Default)]
pub(crate) struct Queues(BTreeMap<u64, Queue>);

impl Queues {
    /// For how long nobody was seen to be woken at this lock, where these sleep now, in order of their ids.
    pub(crate) fn stands(&mut self, lock: u64, waiters: Vec<Waiter>, now: Instant) -> Duration {
        let before =
            self.0.remove(&lock).filter(|q| q.waiters.iter().all(|waiter| waiters.binary_search(waiter).is_ok()));
        let since = before.map_or(now, |q| q.since);
        if self.0.len() >= MOST
            && let Some(oldest) = self.0.iter().min_by_key(|(_, q)| q.since).map(|(&lock, _)| lock)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(lock, Queue { since, waiters });
        now.saturating_duration_since(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_stands_while_nobody_is_woken_there() {
        let (mut queues, start) = (Queues::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut stands =
            |lock, waiters: &[Waiter], seconds| queues.stands(lock, waiters.to_vec(), at(seconds)).as_secs();
        let (one, two, three) = ((1, (5, 5)), (2, (6, 6)), (3, (7, 7)));
        assert_eq!(stands(64, &[one, two], 0), 0);
        assert_eq!(stands(64, &[one, two, three], 2), 2, "one more came");
        assert_eq!(stands(80, &[one], 2), 0, "another lock");
        assert_eq!(stands(64, &[one, two], 3), 0, "the third was woken");
        assert_eq!(stands(64, &[one, (2, (6, 8))], 4), 0, "the second was woken and sleeps again");
        assert_eq!(stands(64, &[one, (2, (6, 8))], 9), 5);
        for lock in 1000..1000 + 2 * MOST as u64 {
            stands(lock, &[one], 10);
        }
        assert_eq!(queues.0.len(), MOST);
    }
}
