//! When a program without a log has fallen quiet: it has done something that others can see since
//! its newest checkpoint, and then nothing for a while. A checkpoint at that moment has all that it
//! has said, so that a crash before the next answer is recovered from exactly.
//!
//! Pure: what was counted and the clock are handed in.

use orbit_linux::calls_made::Made;
use std::time::{Duration, Instant};

/// For how long nothing may be counted until it is quiet.
const QUIET: Duration = Duration::from_millis(2);
/// How seldom a program that is never quiet is inspected.
const SELDOM: Duration = Duration::from_millis(16);

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    moving: Option<Moving>,
}

#[derive(Debug)]
struct Moving {
    /// What was counted when it was last inspected, and when that was.
    made: Made,
    at: Instant,
    /// Until it is inspected again: longer, the longer it continues.
    step: Duration,
    is_quiet: bool,
}

impl Quiet {
    /// A checkpoint was taken: nothing has moved since.
    pub fn begin(&mut self) {
        self.moving = None;
    }

    /// It has done something: from now on it is inspected.
    pub fn moves(&mut self, made: Made, now: Instant) {
        self.moving.get_or_insert(Moving { made, at: now, step: QUIET, is_quiet: false });
    }

    /// Whether it is quiet now; `made` is read only when it is time to look.
    pub fn look(&mut self, made: impl FnOnce() -> Made, now: Instant) -> bool {
        let Some(moving) = &mut self.moving else { return false };
        if now.saturating_duration_since(moving.at) >= moving.step {
            let made = made();
            moving.is_quiet = seen_by_others(&made) == seen_by_others(&moving.made);
            if !moving.is_quiet {
                moving.step = (moving.step * 2).min(SELDOM);
            }
            (moving.made, moving.at) = (made, now);
        }
        moving.is_quiet
    }

    /// When to look next.
    pub fn due(&self) -> Option<Instant> {
        self.moving.as_ref().map(|moving| moving.at + moving.step)
    }
}

/// What a rollback cannot take back, in a row: see [`Made`].
fn seen_by_others(made: &Made) -> [u64; 6] {
    [made.outside, made.connections, made.appended, made.inputs, made.accepts, made.handled]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_quiet_after_its_last_answer() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let made = |connections| Made { seen: 9, connections, ..Made::default() };
        let mut quiet = Quiet::default();
        assert!(!quiet.look(|| made(1), at(0)) && quiet.due().is_none(), "nothing has moved");
        quiet.moves(made(1), at(0));
        assert!(!quiet.look(|| unreachable!("it is not time to look"), at(1)));
        assert!(!quiet.look(|| made(2), at(2)), "it has answered meanwhile");
        assert_eq!(quiet.due(), Some(at(6)), "and is inspected less often");
        assert!(quiet.look(|| Made { seen: 20, ..made(2) }, at(6)), "calls that nobody sees do not count");
        quiet.begin();
        assert!(!quiet.look(|| made(2), at(100)));
    }

    #[test]
    fn one_that_is_never_quiet_is_seldom_inspected() {
        let start = Instant::now();
        let mut quiet = Quiet::default();
        quiet.moves(Made::default(), start);
        let looks = (0..1000).filter(|ms| {
            let mut is_inspected = false;
            let made = || {
                is_inspected = true;
                Made { connections: *ms, ..Made::default() }
            };
            assert!(!quiet.look(made, start + Duration::from_millis(*ms + 1)));
            is_inspected
        });
        assert!((60..70).contains(&looks.count()));
    }
}
