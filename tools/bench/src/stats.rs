//! Samples and what is reported of them: the median, the 99th percentile, the number.

use serde::Serialize;
use std::time::Duration;

/// Times of one thing, microseconds.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

/// Samples as JSON has them: microseconds, unless the field's name says otherwise.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    pub p50: f64,
    pub p99: f64,
    pub n: usize,
}

impl Samples {
    /// One more time.
    pub fn add(&mut self, time: Duration) {
        self.0.push(time.as_nanos() as f64 / 1e3);
    }

    /// One more figure of any unit.
    pub fn add_figure(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// The figures, in the order they came.
    pub fn figures(&self) -> &[f64] {
        &self.0
    }

    /// Takes those of another run of the same thing along.
    pub fn extend(&mut self, figures: &[f64]) {
        self.0.extend_from_slice(figures);
    }

    /// `None` without samples.
    pub fn summary(&self) -> Option<Summary> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |part: f64| sorted[(last as f64 * part).round() as usize];
        Some(Summary { p50: round(at(0.5)), p99: round(at(0.99)), n: sorted.len() })
    }
}

/// The median; 0 without samples.
pub fn median(summary: Option<Summary>) -> f64 {
    summary.map_or(0.0, |summary| summary.p50)
}

/// To a thousandth: a nanosecond, where the unit is a microsecond.
fn round(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

/// A sequence of numbers that seems random and is the same in every run.
pub struct Shuffle(u64);

impl Shuffle {
    /// The sequence with this seed.
    pub fn new(seed: u64) -> Shuffle {
        Shuffle(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        // xorshift64*, by Vigna.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as usize * bound) >> 32
    }

    /// Brings the items out of order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_tail() {
        let mut samples = Samples::default();
        assert!(samples.summary().is_none());
        for figure in (1..=101).rev() {
            samples.add_figure(f64::from(figure));
        }
        let summary = samples.summary().expect("samples");
        assert_eq!((summary.p50, summary.p99, summary.n), (51.0, 100.0, 101));
    }

    #[test]
    fn shuffled_items_are_all_there() {
        let mut items: Vec<usize> = (0..1000).collect();
        Shuffle::new(7).shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
