//! Whether a program has run since its newest checkpoint. One that has not is what it was: another
//! checkpoint would save nothing, and its stop begins calls that wait anew, with their time limits.
//!
//! Pure: CPU time and the clock are handed in.

use std::time::{Duration, Instant};

/// Once a program continues, calls that its stop has ended are made again: that is no work.
const SETTLE: Duration = Duration::from_millis(2);

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// When its CPU time is read, after a checkpoint.
    due: Option<Instant>,
    cpu_ns: Option<u64>,
}

impl Rest {
    /// A checkpoint was taken.
    pub fn begin(&mut self, now: Instant) {
        *self = Rest { due: Some(now + SETTLE), cpu_ns: None };
    }

    /// Reads the CPU time if it is time to.
    pub fn look(&mut self, cpu_ns: impl FnOnce() -> Option<u64>, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            *self = Rest { due: None, cpu_ns: cpu_ns() };
        }
    }

    /// Whether it has not run since; `false` where that cannot be known.
    pub fn is_asleep(&self, cpu_ns: Option<u64>) -> bool {
        self.cpu_ns.is_some() && self.cpu_ns == cpu_ns
    }

    /// When to look next.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_sleeps_is_known_by_its_cpu_time() {
        let start = Instant::now();
        let mut rest = Rest::default();
        assert!(!rest.is_asleep(Some(5)) && rest.due().is_none(), "no checkpoint yet");
        rest.begin(start);
        rest.look(|| unreachable!("calls are made again"), start);
        assert!(!rest.is_asleep(Some(5)), "not known yet");
        rest.look(|| Some(7), start + SETTLE);
        assert!(rest.is_asleep(Some(7)) && rest.due().is_none());
        assert!(!rest.is_asleep(Some(8)), "it has run");
        rest.begin(start);
        rest.look(|| None, start + SETTLE);
        assert!(!rest.is_asleep(None) && !rest.is_asleep(Some(7)), "its CPU time cannot be read");
    }
}
