//! Figures to reach: a ratio or a time, its bound, and whether this run met it.

use serde::Serialize;

/// One figure against its bound.
#[derive(Debug, Serialize)]
pub struct Reach {
    /// What was measured.
    pub what: String,
    pub value: f64,
    /// `times`, or `us`.
    pub unit: &'static str,
    /// `at most` or `at least`.
    pub bound: &'static str,
    pub limit: f64,
    pub met: bool,
}

impl Reach {
    /// The value must not exceed the limit.
    pub fn at_most(what: impl Into<String>, value: f64, limit: f64, unit: &'static str) -> Reach {
        Reach { what: what.into(), value, unit, bound: "at most", limit, met: value <= limit }
    }

    /// The value must reach the limit.
    pub fn at_least(what: impl Into<String>, value: f64, limit: f64, unit: &'static str) -> Reach {
        Reach { what: what.into(), value, unit, bound: "at least", limit, met: value >= limit }
    }
}

/// How many times `a` is `b`; 0 if there is no `b`.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
