//! The guard of an attribute: a pure, bounded judge of the values a service asks for. It is
//! generated from the class (the range, and whether to clamp), as SafeX generates guards from
//! attribute classes.

/// What a guard says of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As asked for.
    Pass(i64),
    /// The nearest value in range.
    Clamp(i64),
    /// The value is out of range, and this handle does not clamp.
    OutOfRange,
    /// The handle lacks the right.
    NoRight,
}

impl Verdict {
    /// The value to apply, if any.
    pub fn value(self) -> Option<i64> {
        match self {
            Verdict::Pass(value) | Verdict::Clamp(value) => Some(value),
            Verdict::OutOfRange | Verdict::NoRight => None,
        }
    }
}

/// The range of an attribute and what happens to values outside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The least value.
    pub min: i64,
    /// The largest value.
    pub max: i64,
    /// Whether a value out of range becomes the nearest one in range; else it is rejected.
    pub clamp: bool,
}

impl Guard {
    /// Judges a value. A guard whose range is empty rejects everything.
    pub fn judge(&self, value: i64) -> Verdict {
        if self.min > self.max {
            Verdict::OutOfRange
        } else if (self.min..=self.max).contains(&value) {
            Verdict::Pass(value)
        } else if self.clamp {
            Verdict::Clamp(value.clamp(self.min, self.max))
        } else {
            Verdict::OutOfRange
        }
    }

    /// The guard that allows what both allow. A grant can so narrow its class, never widen it.
    pub fn within(&self, class: &Guard) -> Guard {
        Guard { min: self.min.max(class.min), max: self.max.min(class.max), clamp: self.clamp }
    }
}

#[cfg(test)]
mod tests {
    use super::{Guard, Verdict};

    const GUARD: Guard = Guard { min: 1, max: 95, clamp: true };

    #[test]
    fn values_pass_are_clamped_or_refused() {
        assert_eq!(GUARD.judge(95), Verdict::Pass(95));
        assert_eq!(GUARD.judge(i64::MAX), Verdict::Clamp(95));
        assert_eq!(GUARD.judge(i64::MIN), Verdict::Clamp(1));
        assert_eq!(Guard { clamp: false, ..GUARD }.judge(0), Verdict::OutOfRange);
    }

    #[test]
    fn a_grant_never_widens_its_class() {
        let wide = Guard { min: i64::MIN, max: i64::MAX, clamp: false };
        assert_eq!(wide.within(&GUARD), Guard { clamp: false, ..GUARD });
        let beside = Guard { min: 96, max: 99, clamp: true }.within(&GUARD);
        assert_eq!(beside.judge(97), Verdict::OutOfRange, "an empty range has no nearest value");
    }
}
