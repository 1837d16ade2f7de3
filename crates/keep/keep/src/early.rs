//! Checkpoints before they are due, so that a crash under load has little to replay: as many as
//! cost the program a bounded share of its time.

use std::time::{Duration, Instant};

/// Bytes of the log since the newest checkpoint that are worth an early one: some 4,000 calls, 3 ms
/// to replay.
pub(crate) const LEAST_REPLAYED: u64 = 256 << 10;
/// Early checkpoints cost one part in so many.
const SHARE: u32 = 64;
/// What the first write to a page costs the program after a checkpoint.
const FIRST_WRITE: Duration = Duration::from_micros(1);

/// When the next one may come.
#[derive(Default)]
pub(crate) struct Early {
    not_before: Option<Instant>,
}

impl Early {
    /// A checkpoint of so many pages took so much of the program's time and of the keeper's
    /// processor, until `now`. Not how long it was until its end: on a loaded machine that would
    /// put off the next one without need.
    pub fn taken(&mut self, took: Duration, pages: usize, now: Instant) {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let cost = took.saturating_add(FIRST_WRITE.saturating_mul(pages));
        self.not_before = now.checked_add(cost.saturating_mul(SHARE));
    }

    /// Whether it may be taken; without a checkpoint before there is nothing to be early for.
    pub fn may(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|then| now >= then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_cost_a_bounded_share() {
        let start = Instant::now();
        let mut early = Early::default();
        assert!(!early.may(start));
        let ms = Duration::from_millis(1);
        early.taken(ms, 1000, start);
        let first = (0..1000).find(|nth| early.may(start + *nth * ms)).expect("it may some time");
        assert_eq!(first, 2 * SHARE, "1 ms, and 1,000 first writes");
        early.taken(Duration::MAX, usize::MAX, start);
        assert!(!early.may(start + Duration::from_secs(3600)));
    }
}
