//! Virtual time: how fast guests' clocks run, and whether their real-time clock jumps.

use std::time::Duration;

/// How many times faster than real time guests' clocks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// In thousandths.
    pub(crate) thousandths: u64,
}

impl Speed {
    /// Clocks stand still at the start of the session. Sleeps and time-outs last as long as they
    /// would; the clocks show nothing of it.
    pub const FROZEN: Speed = Speed { thousandths: 0 };

    /// From 0.001 to 1,000,000 times.
    pub fn times(times: f64) -> Option<Speed> {
        (0.001..=1e6).contains(&times).then(|| Speed { thousandths: (times * 1e3).round() as u64 })
    }
}

/// A jump of guests' real-time clock (not the monotonic one), as when an administrator or NTP sets
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// How far, in nanoseconds; back if negative.
    pub by_ns: i64,
    /// When: real time since the start of the session.
    pub after: Duration,
}

impl Jump {
    /// `+1h`, `-30s`: at the start; `-30s after 10s`: later. Units: ns, us, ms, s, m, h, d; 10
    /// years at most.
    pub fn parse(text: &str) -> Option<Jump> {
        let (by, after) = match text.split_once("after") {
            Some((by, after)) => (by, Some(after)),
            None => (text, None),
        };
        let by = by.trim();
        let sign = if by.starts_with('-') { -1 } else { 1 };
        let by = duration(by.strip_prefix(['+', '-'])?)?;
        let after = after.map_or(Some(Duration::ZERO), |after| duration(after.trim()))?;
        let by_ns = i64::try_from(by.as_nanos()).ok().filter(|by| *by != 0)?;
        Some(Jump { by_ns: sign * by_ns, after })
    }
}

/// A number with its unit, 10 years at most.
fn duration(text: &str) -> Option<Duration> {
    const MAX_SHIFT_SECONDS: f64 = 3650.0 * 86_400.0;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    let seconds = digits.parse::<f64>().ok()? * unit;
    (0.0..=MAX_SHIFT_SECONDS).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_as_they_are_written() {
        let jump = |by_ns, seconds| Some(Jump { by_ns, after: Duration::from_secs(seconds) });
        assert_eq!(Jump::parse("+1h"), jump(3_600_000_000_000, 0));
        assert_eq!(Jump::parse("-30s after 10s"), jump(-30_000_000_000, 10));
        assert_eq!(Jump::parse("+1.5d after 2m"), jump(129_600_000_000_000, 120));
        for wrong in ["", "1h", "+", "+1", "+0s", "+1y", "-1h after", "+1h after -2s", "+9999d"] {
            assert_eq!(Jump::parse(wrong), None, "{wrong}");
        }
    }
}
