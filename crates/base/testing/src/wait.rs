//! Waiting for a condition.

use std::time::{Duration, Instant};

/// Longest wait for anything: the machine may have many times the load that it has cores.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
///
/// # Panics
/// With `what`, if it does not hold within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_some(what, || holds().then_some(()));
}

/// Waits until there is an answer, and returns it.
///
/// # Panics
/// With `what`, if there is none within [`PATIENCE`].
#[track_caller]
pub fn until_some<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "waited {} s in vain: {what}", PATIENCE.as_secs());
        std::thread::sleep((begin.elapsed() / 8).clamp(Duration::from_millis(1), Duration::from_millis(10)));
    }
}

#[cfg(test)]
mod tests {
    use super::{until, until_some};

    #[test]
    fn a_condition_is_asked_until_it_holds_and_not_once_more() {
        let mut asked = 0;
        until("it was asked three times", || {
            asked += 1;
            asked == 3
        });
        assert_eq!(asked, 3);
        assert_eq!(until_some("an answer", || Some(7)), 7);
    }
}
