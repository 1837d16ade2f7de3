//! What suspects may cost in one look, and whose turn it is.
//!
//! Promises: of those that are to be examined one always is; those that no look got to come first in the next; threads that were told to spin are
//! examined after all others, one a look.

use super::cpu_time;
use crate::Ahd;
use crate::old::thread::Since;
use std::time::Instant;

impl Ahd {
    /// Whether the time for suspects in this look is over. To be asked while one waits for its turn, and not before the first.
    pub(crate) fn spent(&self) -> bool {
        let spent = Instant::now() >= self.until.0 || cpu_time() >= self.until.1;
        self.unfinished.set(self.unfinished.get() || spent);
        spent
    }

    /// Whether this thread may be examined in this look: of those that are to be, one always is.
    pub(crate) fn may_examine(&mut self, pid: i32, tid: i32) -> bool {
        if std::mem::replace(&mut self.examined, true) && self.spent() {
            self.not_examined.get_or_insert((pid, tid));
            return false;
        }
        true
    }

    /// Whether a thread that was told to spin may be examined in this look: if no other one was, and as a small part of the time.
    pub(crate) fn may_look_back(&mut self) -> bool {
        let may = !self.examined && Instant::now() >= self.look_back_from;
        self.examined |= may;
        may
    }

    /// Suspects by their turn: those that were not told, from the one on that got none in the last look; then those that were told to spin, from
    /// behind the last of them that was examined.
    pub(super) fn in_turn(&self, suspects: Vec<(i32, i32, Since)>) -> Vec<(i32, i32, Since)> {
        let told = |&(pid, tid, _): &(i32, i32, Since)| {
            self.processes.get(&pid).and_then(|p| p.threads.get(&tid)).is_some_and(|t| t.told.is_some())
        };
        let from = |mut list: Vec<(i32, i32, Since)>, first: (i32, i32)| {
            list.sort_by_key(|&(pid, tid, _)| (pid, tid));
            let at = list.partition_point(|&(pid, tid, _)| (pid, tid) < first);
            list.rotate_left(at);
            list
        };
        let (told, others): (Vec<_>, Vec<_>) = suspects.into_iter().partition(told);
        let (pid, tid) = self.looked_back;
        [from(others, self.examine_from), from(told, (pid, tid + 1))].concat()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Ahd, Config};
    use std::time::{Duration, Instant};

    #[test]
    fn a_budget_is_used_up_only_where_somebody_still_waits() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        let mut ahd = Ahd::new(Config::default());
        ahd.add(std::process::id() as i32).expect("this process");
        let mut unfinished_with = |due: usize| {
            let threads = ahd.processes.values_mut().flat_map(|p| p.threads.values_mut());
            let mut set = 0;
            for (i, t) in threads.enumerate() {
                let hopeless = Duration::from_secs(2);
                (t.still, t.judge, set) =
                    if i < due { (hopeless, Duration::ZERO, set + 1) } else { (Duration::ZERO, hopeless, set) };
            }
            assert_eq!(set, due, "threads of this test");
            (ahd.until, ahd.judge_from) = ((Instant::now(), Duration::ZERO), Instant::now());
            ahd.unfinished.set(false);
            ahd.judge_waits(Duration::from_millis(75), &mut |_| ());
            ahd.unfinished.get()
        };
        assert!(!unfinished_with(1));
        assert!(unfinished_with(2));
        drop(end);
        let _ = other.join();
    }
}
