//! The supervisor's part in forks of main's: it copies the memory of shared areas that the child
//! has, so that the next merge need not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::area::{Refill, forks};
use crate::units::Bytes;

/// Copied before the supervisor sees to other things.
const STEP: Bytes = Bytes::new(1 << 20);
/// A program that forks all the time spends one part in so many of a processor on copies.
const REST: u32 = 4;

/// Copies on their way.
#[derive(Default)]
pub(crate) struct Refills {
    all: Vec<Arc<Refill>>,
    /// Memory was lent, and no copy begun since.
    is_due: bool,
    spent: Duration,
    rests_until: Option<Instant>,
}

impl Refills {
    /// Does a part of what is to be done; says how soon to come again.
    pub fn step(&mut self) -> Option<Duration> {
        self.is_due |= forks::have_lent();
        // The area has its new memory, or is gone: here goes the old one.
        self.all.retain(|refill| Arc::strong_count(refill) > 1);
        if let Some(refill) = self.all.iter().find(|refill| !refill.is_full() && !refill.has_failed()) {
            let began = Instant::now();
            // Where it fails, the next merge begins another one.
            let _ = refill.fill(STEP);
            self.spent += began.elapsed();
            if refill.is_full() {
                self.rests_until = Some(Instant::now() + self.spent * REST);
                self.spent = Duration::ZERO;
            }
            return Some(Duration::ZERO);
        }
        if !self.is_due {
            return None;
        }
        if let Some(rest) = self.rests_until.map(|until| until.saturating_duration_since(Instant::now()))
            && rest > Duration::ZERO
        {
            return Some(rest);
        }
        self.is_due = false;
        for refill in forks::refills() {
            if !refill.is_watched() {
                refill.watch();
                self.all.push(refill);
            }
        }
        (!self.all.is_empty()).then_some(Duration::ZERO)
    }
}
