//! The checkpoints of a program, newest last: one full image of its memory, and for each older
//! checkpoint the pages that were replaced since.
//!
//! Invariant: what page P held at checkpoint k is the first entry for P in `replaced` of k, k + 1,
//! ... before the newest, else the image's.

use crate::pages::{Bytes, Image, Pool};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// One checkpoint: `S` is what there is of it beside memory.
pub(crate) struct Checkpoint<S> {
    pub state: S,
    pub taken: Instant,
    /// Pages as they were here, of those that the next checkpoint found changed.
    replaced: HashMap<u64, Option<Box<Bytes>>>,
}

/// All checkpoints.
pub(crate) struct History<S> {
    image: Image,
    pool: Pool,
    checkpoints: Vec<Checkpoint<S>>,
}

impl<S> History<S> {
    pub fn new() -> History<S> {
        History { image: Image::default(), pool: Pool::default(), checkpoints: Vec::new() }
    }

    /// Pages to copy into.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// The memory at the newest checkpoint.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The newest checkpoint.
    pub fn newest(&self) -> Option<&Checkpoint<S>> {
        self.checkpoints.last()
    }

    /// Checkpoints, newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &Checkpoint<S>> {
        self.checkpoints.iter().rev()
    }

    /// What is kept of each, newest first.
    pub fn states_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.checkpoints.iter_mut().rev().map(|checkpoint| &mut checkpoint.state)
    }

    /// The oldest checkpoint.
    pub fn oldest(&self) -> Option<&Checkpoint<S>> {
        self.checkpoints.first()
    }

    /// Pages that are held, by the image and for older checkpoints.
    pub fn pages(&self) -> usize {
        self.image.len() + self.checkpoints.iter().map(|c| c.replaced.values().flatten().count()).sum::<usize>()
    }

    /// A new checkpoint: `pages` have changed since the newest; `None` is a page that holds what
    /// its mapping holds by itself.
    pub fn commit(&mut self, pages: Vec<(u64, Option<Box<Bytes>>)>, state: S, taken: Instant) {
        for (address, page) in pages {
            let before = self.image.replace(address, page);
            match self.checkpoints.last_mut() {
                Some(newest) if !newest.replaced.contains_key(&address) => {
                    newest.replaced.insert(address, before);
                }
                _ => self.pool.give(before),
            }
        }
        self.checkpoints.push(Checkpoint { state, taken, replaced: HashMap::new() });
    }

    /// Forgets the `index` newest checkpoints; the image becomes that of the one before. Returns
    /// the addresses of the pages that differ between the newest checkpoint that was and the one
    /// that is.
    pub fn go_back(&mut self, index: usize) -> Vec<u64> {
        let mut differ = Vec::new();
        for _ in 0..index.min(self.checkpoints.len().saturating_sub(1)) {
            self.checkpoints.pop();
            let Some(now) = self.checkpoints.last_mut() else { break };
            for (address, page) in now.replaced.drain() {
                let later = self.image.replace(address, page);
                self.pool.give(later);
                differ.push(address);
            }
        }
        differ.sort_unstable();
        differ.dedup();
        differ
    }

    /// Forgets the checkpoint at `index` from the oldest; the newest cannot be.
    fn forget(&mut self, index: usize) {
        if index + 1 >= self.checkpoints.len() {
            return;
        }
        let gone = self.checkpoints.remove(index);
        for (address, page) in gone.replaced {
            match index.checked_sub(1).map(|older| &mut self.checkpoints[older].replaced) {
                Some(older) if !older.contains_key(&address) => {
                    older.insert(address, page);
                }
                _ => self.pool.give(page),
            }
        }
    }

    /// Forgets the oldest checkpoint, unless it is the only one.
    pub fn forget_oldest(&mut self) {
        self.forget(0);
    }

    /// Keeps at most `most` checkpoints, spaced so that ages grow by powers of two of `interval`.
    pub fn thin(&mut self, most: usize, interval: Duration, now: Instant) {
        loop {
            let ages: Vec<Duration> = self.checkpoints.iter().map(|c| now.saturating_duration_since(c.taken)).collect();
            match superfluous(&ages, most, interval) {
                Some(index) => self.forget(index),
                None => return,
            }
        }
    }
}

/// Which of the checkpoints with these ages (oldest first) should go: one older than all `most`
/// powers of two, else, if there are too many, the one whose neighbours lie closest together for
/// their age.
fn superfluous(ages: &[Duration], most: usize, interval: Duration) -> Option<usize> {
    let most = most.max(1);
    let limit = interval.saturating_mul(1 << (most - 1).min(20)).saturating_add(interval / 2);
    if ages.len() > 1 && ages[0] > limit {
        return Some(0);
    }
    if ages.len() <= most {
        return None;
    }
    let crowding = |i: usize| {
        let (older, newer) = (ages[i - 1].as_secs_f64(), ages[i + 1].as_secs_f64());
        (older - newer) / (newer + interval.as_secs_f64() / 2.0).max(1e-9)
    };
    // The oldest and the newest stay.
    (1..ages.len() - 1).min_by(|a, b| crowding(*a).total_cmp(&crowding(*b))).or(Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::PAGE;
    use orbit_testing::Random;

    fn page(n: u8) -> Option<Box<Bytes>> {
        Some(Box::new([n; PAGE as usize]))
    }

    /// A random history against a model that keeps each checkpoint whole.
    #[test]
    fn going_back_finds_what_was_there() {
        let mut drawn = Random::new(0x9e37_79b9_7f4a_7c15);
        let mut random = move |below: u64| drawn.below(below);
        for round in 0..200 {
            let mut history = History::new();
            let mut model: Vec<(u32, HashMap<u64, u8>)> = Vec::new();
            let mut now = HashMap::new();
            for step in 0..40u32 {
                match random(10) {
                    0 if model.len() > 1 => {
                        let index = random(model.len() as u64) as usize;
                        if index + 1 < model.len() {
                            history.forget(index);
                            model.remove(index);
                        }
                    }
                    1 if model.len() > 1 => {
                        let back = random(model.len() as u64) as usize;
                        history.go_back(back);
                        model.truncate(model.len() - back);
                        now = model.last().expect("one is left").1.clone();
                    }
                    _ => {
                        let mut changed = Vec::new();
                        for _ in 0..random(6) {
                            let (address, value) = (random(8) * PAGE, random(200) as u8);
                            if value < 20 {
                                now.remove(&address);
                                changed.push((address, None));
                            } else {
                                now.insert(address, value);
                                changed.push((address, page(value)));
                            }
                        }
                        history.commit(changed, step, Instant::now());
                        model.push((step, now.clone()));
                    }
                }
                let Some((state, memory)) = model.last() else { continue };
                assert_eq!(history.newest().map(|c| c.state), Some(*state), "round {round}, step {step}");
                for address in (0..8).map(|i| i * PAGE) {
                    let held = history.image().get(address).map(|bytes| bytes[0]);
                    assert_eq!(held, memory.get(&address).copied(), "round {round}, step {step}, page {address:#x}");
                }
            }
        }
    }

    #[test]
    fn ages_grow_by_powers_of_two() {
        let interval = Duration::from_secs(1);
        let start = Instant::now();
        let mut history = History::new();
        for second in 0..100u64 {
            let now = start + Duration::from_secs(second);
            history.commit(Vec::new(), (), now);
            history.thin(4, interval, now);
            let ages: Vec<u64> = history.newest_first().map(|c| now.duration_since(c.taken).as_secs()).collect();
            assert!(ages.len() <= 4 && ages[0] == 0, "{ages:?}");
            if second > 10 {
                assert!(ages.len() == 4 && ages[1] <= 2 && (3..=8).contains(&ages[3]), "{second}: {ages:?}");
            }
        }
    }

    #[test]
    fn the_newest_is_never_forgotten() {
        let mut history: History<u8> = History::new();
        history.commit(vec![(0, page(1))], 1, Instant::now());
        history.forget_oldest();
        assert_eq!((history.newest().map(|c| c.state), history.pages()), (Some(1), 1));
    }
}
