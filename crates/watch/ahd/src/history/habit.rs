//! What a thread does again and again: its homes, how often it is back, how long it was away.

use super::home::{Home, home};
use crate::facts::Sight;
use crate::limits::Limits;
use std::collections::BTreeMap;

/// Homes remembered of a thread.
const HOMES: usize = 16;
/// Sights in a place, and their share of all, that make it a home.
const SIGHTS: u32 = 3;
const SHARE: f64 = 0.10;
/// Sights of all threads at a place that make it a home of each of them.
const SHARED_SIGHTS: u32 = 20;
/// After so many sights old ones count half.
const WINDOW: u32 = 256;

/// A moment of a thread: the time, and for how long the machine had kept it from running until
/// then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stamp {
    /// Seconds.
    pub t: f64,
    /// Time it had lost, s: see [`Thread::lost`](crate::facts::Thread::lost).
    pub lost: f64,
}

impl Stamp {
    /// Time since then, less what it lost.
    fn until(self, now: f64, lost: f64) -> f64 {
        now - self.t - (lost - self.lost).max(0.0)
    }
}

/// How often each place was met.
#[derive(Clone, Debug, Default)]
pub struct Places {
    met: BTreeMap<Home, u32>,
    sights: u32,
}

impl Places {
    fn add(&mut self, home: Home) -> u32 {
        if !self.met.contains_key(&home)
            && self.met.len() > HOMES
            && let Some(least) = self.met.iter().min_by_key(|(_, n)| **n).map(|(home, _)| *home)
        {
            self.met.remove(&least);
        }
        let n = self.met.entry(home).or_default();
        *n += 1;
        *n
    }

    fn is_share(&self, n: u32) -> bool {
        f64::from(n) >= SHARE * f64::from(self.sights)
    }

    fn age(&mut self) {
        if self.sights >= WINDOW {
            self.sights /= 2;
            self.met.values_mut().for_each(|n| *n /= 2);
            self.met.retain(|_, n| *n > 0);
        }
    }

    /// One more sight of a thread of the process at a place that threads may share; whether it is a
    /// home of them all.
    pub fn is_shared_home(&mut self, home: Home) -> bool {
        self.sights += 1;
        let n = self.add(home);
        n >= SHARED_SIGHTS && self.is_share(n)
    }
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Habit {
    places: Places,
    first: Option<f64>,
    /// Sleeps between its returns to a home, all together.
    pub returns: u64,
    /// When it was last seen at a home, and its voluntary switches then.
    pub last_home: Option<(Stamp, u64)>,
    /// When it was last seen to have moved bytes.
    moved: Stamp,
    /// Longest time it was away, s.
    pub longest: f64,
    /// Whether its last sight was at a home.
    pub at_home: bool,
    /// Whether its last home was one at which events of the whole process come in.
    pub is_event_loop: bool,
}

impl Habit {
    /// Takes a sight of it after it ran, and what it had lost by then; until the scan at `rested`
    /// it was as it was seen before. `shared` are the homes of all threads of the process.
    pub fn saw(&mut self, old: Option<&Sight>, new: &Sight, lost: f64, rested: f64, shared: &mut Places) {
        let stamp = Stamp { t: new.t, lost };
        // An absence begins when it leaves: a night without work is none.
        if self.at_home
            && let Some((home, _)) = &mut self.last_home
        {
            home.t = home.t.max(rested);
        }
        self.at_home = false;
        let moved_before = self.moved;
        if old.is_some_and(|old| (old.io.0, old.io.1) != (new.io.0, new.io.1)) {
            self.moved = stamp;
        }
        if new.st != 'S' {
            return;
        }
        self.places.sights += 1;
        let Some(home) = home(new) else { return };
        let n = self.places.add(home);
        self.first.get_or_insert(new.t);
        let common = home.is_shared() && shared.is_shared_home(home);
        let before = n > SIGHTS && f64::from(n - 1) >= SHARE * f64::from(self.places.sights);
        if common || before || n >= SIGHTS && self.places.is_share(n) {
            if self.last_home.is_some() {
                // Bytes moved on the way back are no progress of the absence that they end.
                let moved = std::mem::replace(&mut self.moved, moved_before);
                self.longest = self.longest.max(self.away(new.t, lost));
                self.moved = moved;
            }
            if let Some((_, switches)) = self.last_home {
                self.returns += new.v.saturating_sub(switches);
            }
            self.last_home = Some((stamp, new.v));
            self.at_home = true;
            self.is_event_loop = home.is_shared();
        }
        self.places.age();
    }

    /// Whether it was back in its loop often enough, and over a time long enough, to know how it
    /// behaves.
    pub fn is_learnt(&self, limits: &Limits) -> bool {
        let Some((last, _)) = self.last_home else { return false };
        self.returns >= limits.returns && self.first.is_some_and(|first| last.t - first >= limits.learn)
    }

    /// Time since it was last in its loop or moved a byte, less what it lost, s.
    pub fn away(&self, now: f64, lost: f64) -> f64 {
        let Some((last, _)) = self.last_home else { return 0.0 };
        let away = last.until(now, lost);
        if self.moved.t > last.t { away.min(self.moved.until(now, lost)) } else { away }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(t: f64, v: u64, nr: i64) -> Sight {
        Sight { t, v, nr, a0: 5, st: 'S', ..Sight::default() }
    }

    #[test]
    fn a_loop_is_learnt_by_its_returns_and_lost_time_is_taken_off() {
        let (mut habit, mut shared) = (Habit::default(), Places::default());
        let limits = Limits::default();
        let mut old = at(0.0, 0, libc::SYS_epoll_wait);
        for i in 1..40u32 {
            let new = at(f64::from(i) * 0.08, u64::from(i) * 3, libc::SYS_epoll_wait);
            habit.saw(Some(&old), &new, 0.0, 0.0, &mut shared);
            old = new;
        }
        assert!(habit.is_learnt(&limits) && habit.at_home, "{habit:?}");
        let gone = Sight { st: 'R', nr: -1, ..at(4.0, 120, -1) };
        habit.saw(Some(&old), &gone, 0.0, 0.0, &mut shared);
        assert!(!habit.at_home);
        assert!((habit.away(10.12, 0.0) - 7.0).abs() < 0.01, "{habit:?}");
        assert!((habit.away(10.12, 2.0) - 5.0).abs() < 0.01);
    }

    #[test]
    fn time_without_work_is_no_absence() {
        let (mut habit, mut shared) = (Habit::default(), Places::default());
        let mut old = at(0.0, 0, libc::SYS_epoll_wait);
        for i in 1..40u32 {
            // Asleep for ten minutes until the scan before, then a moment's work.
            let t = f64::from(i) * 600.0;
            let new = at(t, u64::from(i) * 3, libc::SYS_epoll_wait);
            habit.saw(Some(&old), &new, 0.0, t - 0.08, &mut shared);
            old = new;
        }
        assert!(habit.is_learnt(&Limits::default()) && habit.longest < 0.1, "{habit:?}");
    }
}
