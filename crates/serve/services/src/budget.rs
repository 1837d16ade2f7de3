//! Budgets of services, and whether one more can be admitted.

use crate::error::{Error, Kind, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// CPU time of a service: at most `cpu` in each `window`, and at most `cpu` in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    cpu: Duration,
    window: Duration,
}

impl Budget {
    /// The least CPU time of a run: below it the timer that bounds the run costs more than the run.
    pub const MIN_CPU: Duration = Duration::from_micros(10);
    /// The longest window.
    pub const MAX_WINDOW: Duration = Duration::from_secs(60);

    /// So much CPU time in each window.
    ///
    /// # Errors
    /// `Invalid` for less than [`Budget::MIN_CPU`], more than the window, or a window of more than
    /// [`Budget::MAX_WINDOW`].
    pub fn new(cpu: Duration, window: Duration) -> Result<Budget> {
        let wrong = |why: String| Err(Error::new(Kind::Invalid, format!("budget {cpu:?}/{window:?}: {why}")));
        if cpu < Budget::MIN_CPU {
            return wrong(format!("a run has at least {:?}", Budget::MIN_CPU));
        }
        if window > Budget::MAX_WINDOW {
            return wrong(format!("a window is at most {:?}", Budget::MAX_WINDOW));
        }
        if cpu > window {
            return wrong("more than one CPU".to_owned());
        }
        Ok(Budget { cpu, window })
    }

    /// CPU time of a run, and in a window.
    pub fn cpu(&self) -> Duration {
        self.cpu
    }

    /// The window.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Share of one CPU, 0 to 1.
    pub fn share(&self) -> f64 {
        self.cpu.as_secs_f64() / self.window.as_secs_f64()
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", text(self.cpu), text(self.window))
    }
}

/// A time as [`duration`] reads it, in the largest unit that leaves no rest.
fn text(time: Duration) -> String {
    let ns = time.as_nanos();
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let (size, unit) = units.into_iter().find(|(size, _)| ns.is_multiple_of(*size)).unwrap_or((1, "ns"));
    format!("{}{unit}", ns / size)
}

impl FromStr for Budget {
    type Err = Error;

    /// `50us/10ms`.
    fn from_str(text: &str) -> Result<Budget> {
        let wrong = || Error::new(Kind::Invalid, format!("budget {text:?}: write CPU time/window, as in 50us/10ms"));
        let (cpu, window) = text.split_once('/').ok_or_else(wrong)?;
        Budget::new(duration(cpu).ok_or_else(wrong)?, duration(window).ok_or_else(wrong)?)
    }
}

/// A time with its unit: `10ms`, `50us`, `2s`, `100ns`. `None` for anything else.
pub fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let ns = match &text[digits..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.checked_mul(ns).map(Duration::from_nanos)
}

/// Judges whether a budget fits beside those that were admitted. A pure function.
///
/// # Errors
/// `Full`, with the shares.
pub fn admit(admitted: impl IntoIterator<Item = Budget>, wanted: Budget, limit: f64) -> Result<()> {
    let taken: f64 = admitted.into_iter().map(|budget| budget.share()).sum();
    if taken + wanted.share() <= limit + 1e-9 {
        return Ok(());
    }
    Err(Error::new(
        Kind::Full,
        format!(
            "budget {wanted} is {:.2} % of a CPU, and {:.2} % of {:.2} % are reserved: ask for less, or revoke a \
             service",
            wanted.share() * 100.0,
            taken * 100.0,
            limit * 100.0
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_with_their_units() {
        let budget: Budget = "50us/10ms".parse().expect("a budget");
        assert_eq!((budget.cpu(), budget.window()), (Duration::from_micros(50), Duration::from_millis(10)));
        for written in ["50us/10ms", "1500us/1s", "12345ns/60s"] {
            assert_eq!(written.parse::<Budget>().map(|budget| budget.to_string()), Ok(written.to_owned()));
        }
        for bad in
            ["", "50us", "50/10ms", "50us/", "0us/10ms", "20ms/10ms", "1s/100s", "-1us/1s", "99999999999999999999s/1s"]
        {
            assert_eq!(bad.parse::<Budget>().map_err(|e| e.kind()), Err(Kind::Invalid), "{bad:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let tenth: Budget = "1ms/10ms".parse().expect("a budget");
        admit([tenth; 4], tenth, 0.5).expect("the fifth tenth of a half");
        let error = admit([tenth; 5], tenth, 0.5).expect_err("the sixth");
        assert_eq!(error.kind(), Kind::Full);
        assert!(
            error.to_string().contains("10.00 % of a CPU") && error.to_string().contains("50.00 % of 50.00 %"),
            "{error}"
        );
    }
}
