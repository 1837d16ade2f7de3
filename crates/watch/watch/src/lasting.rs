//! `--on-hang after=TIME:ACTION`: hangs that are acted on once they have lasted for so long,
//! however sure their report is.
//!
//! Pure but for the clock. Promises: a hang of which it is not certain that it lasts is not acted
//! on: all are forgotten when the detection is loaded again, for what ended meanwhile is never
//! reported; those that last are reported anew. An end that fits none of a process' hangs takes all
//! of them away.

use orbit_ahd::Hang;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Hangs that are remembered; more are not acted on.
const MAX_HANGS: usize = 1000;

/// See the module's head.
#[derive(Default)]
pub struct Lasting(BTreeMap<(i32, i32), (Instant, Hang)>);

impl Lasting {
    /// A hang was reported, which is due when it has lasted for so long.
    pub fn add(&mut self, hang: Hang, after: Duration) {
        let due = Instant::now() + after.saturating_sub(hang.since);
        let key = (hang.pid, hang.tid);
        if self.0.len() >= MAX_HANGS && !self.0.contains_key(&key) {
            return;
        }
        // Reported again it is surer, and as old as it was.
        let due = self.0.get(&key).map_or(due, |known| known.0.min(due));
        self.0.insert(key, (due, hang));
    }

    /// A hang is over.
    pub fn over(&mut self, pid: i32, tid: i32) {
        if self.0.remove(&(pid, tid)).is_none() {
            self.left(pid);
        }
    }

    /// A process has ended, or is let go.
    pub fn left(&mut self, pid: i32) {
        self.0.retain(|key, _| key.0 != pid);
    }

    /// Whether each of them lasts is not known.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// Takes those that have lasted for so long.
    pub fn due(&mut self) -> Vec<Hang> {
        let now = Instant::now();
        let keys: Vec<(i32, i32)> = self.0.iter().filter(|(_, (due, _))| *due <= now).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.0.remove(key)).map(|(_, hang)| hang).collect()
    }

    /// Time until the next is due.
    pub fn pause(&self) -> Duration {
        let next = self.0.values().map(|(due, _)| *due).min();
        next.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_ahd::{Kind, Sure, Unit};

    fn hang(pid: i32, tid: i32, since: Duration) -> Hang {
        Hang {
            kind: Kind::Blocked,
            pid,
            tid,
            comm: String::new(),
            section: None,
            progress: 0,
            usual: None,
            check_value: 0,
            unit: Unit::WaitNs,
            since,
            latency: Duration::ZERO,
            why: String::new(),
            sure: Sure::Guess,
            threads: Vec::new(),
            cycle: Vec::new(),
            runtime: Vec::new(),
        }
    }

    #[test]
    fn only_what_lasts_is_due() {
        let (minute, mut lasting) = (Duration::from_secs(60), Lasting::default());
        lasting.add(hang(1, 1, Duration::from_secs(5)), minute);
        lasting.add(hang(1, 2, Duration::from_secs(61)), minute);
        lasting.add(hang(2, 2, Duration::from_secs(61)), minute);
        lasting.over(2, 2);
        let due: Vec<(i32, i32)> = lasting.due().iter().map(|hang| (hang.pid, hang.tid)).collect();
        assert_eq!(due, [(1, 2)]);
        assert!(lasting.due().is_empty() && lasting.pause() <= minute && lasting.pause() > minute / 2);
        // The end of another thread's may be this one's: it is not acted on.
        lasting.over(1, 7);
        assert_eq!(lasting.pause(), Duration::MAX);
        lasting.add(hang(3, 3, minute), minute);
        lasting.forget();
        assert!(lasting.due().is_empty());
    }
}
