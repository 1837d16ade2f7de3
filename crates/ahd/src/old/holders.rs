//! Who holds locks, as looks at those who wait for them show, and since when.
//!
//! A lock that goes from hand to hand has a holder at each look, and with many at it one of them may wait for longer than the limit. So a lock is held too long only if one thread had it
//! all the while that another waits, or for the limit, as far as that was seen.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Locks remembered of a process; of more, those not looked at for longest are forgotten.
const MOST: usize = 256;

/// A lock, as those of one process wait for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lock {
    /// At the word of a futex.
    Word(u64),
    /// On a file.
    File(String),
}

#[derive(Debug)]
struct Seen {
    holder: (i32, i32),
    /// When it was first seen to have it.
    since: Instant,
    /// Another one had it before.
    changed: bool,
    looked: Instant,
}

/// The locks of one process.
#[derive(Debug, Default)]
pub(crate) struct Holders(BTreeMap<Lock, Seen>);

impl Holders {
    /// Notes who holds a lock now. For how long that one has it, as far as that concerns one who waits for it for `still`: all that time, unless it was seen to change hands in it.
    pub(crate) fn held(&mut self, lock: Lock, holder: (i32, i32), still: Duration, now: Instant) -> Duration {
        if self.0.len() >= MOST
            && !self.0.contains_key(&lock)
            && let Some(oldest) = self.0.iter().min_by_key(|(_, s)| s.looked).map(|(lock, _)| lock.clone())
        {
            self.0.remove(&oldest);
        }
        let fresh = Seen { holder, since: now, changed: false, looked: now };
        let seen = self.0.entry(lock).or_insert(fresh);
        if seen.holder != holder {
            *seen = Seen { holder, since: now, changed: true, looked: now };
        }
        seen.looked = now;
        let had = now.saturating_duration_since(seen.since);
        if seen.changed && had < still { had } else { still }
    }

    /// For how long the lock was seen to have the holder it had at the last look.
    pub(crate) fn seen(&self, lock: &Lock, now: Instant) -> Duration {
        self.0.get(lock).map_or(Duration::ZERO, |s| now.saturating_duration_since(s.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_changes_hands_is_held_from_then_on() {
        let (mut holders, start) = (Holders::default(), Instant::now());
        let mut held = |lock, holder, still, second| {
            let still = Duration::from_secs(still);
            holders.held(Lock::Word(lock), (1, holder), still, start + Duration::from_secs(second)).as_secs()
        };
        assert_eq!(held(64, 7, 1, 1), 1, "who has it at the first look had it before");
        assert_eq!(held(64, 7, 5, 5), 5);
        assert_eq!(held(64, 8, 6, 6), 0, "another one has it now");
        assert_eq!(held(64, 8, 9, 9), 3);
        assert_eq!(held(64, 8, 2, 9), 2, "of one who came later it is the whole wait");
        assert_eq!(held(72, 7, 9, 9), 9, "another lock");
        for other in 0..MOST as u64 {
            held(1000 + other, 7, 1, 10 + other);
        }
        assert_eq!(holders.0.len(), MOST);
    }
}
