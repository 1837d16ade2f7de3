//! The one form of a row of a result, which every bench has: what was measured, ours, the rivals',
//! and the bound.

use super::reach::Reach;
use super::stats::Summary;
use serde::Serialize;
use std::collections::BTreeMap;

/// A row: the fields that all benches share, then the bench's own.
#[derive(Debug, Serialize)]
pub struct Measured<R> {
    /// What was measured, in words.
    measure: String,
    /// Of `ours` and `rivals`.
    unit: &'static str,
    ours: Option<Summary>,
    /// Measured in the same run, by name.
    rivals: BTreeMap<&'static str, Summary>,
    /// The bound that this row has to keep, as `at most 2 times`.
    reach: Option<String>,
    met: Option<bool>,
    #[serde(flatten)]
    own: R,
}

impl<R: Serialize> Measured<R> {
    /// A row about `measure`, with the bench's own fields; figures are in `unit`.
    pub fn new(measure: impl Into<String>, unit: &'static str, own: R) -> Measured<R> {
        let measure = measure.into();
        Measured { measure, unit, ours: None, rivals: BTreeMap::new(), reach: None, met: None, own }
    }

    /// Our figure, if there is one.
    pub fn ours(mut self, ours: Option<Summary>) -> Self {
        self.ours = ours;
        self
    }

    /// A rival's figure, if it was measured.
    pub fn rival(mut self, name: &'static str, figure: Option<Summary>) -> Self {
        self.rivals.extend(figure.map(|figure| (name, figure)));
        self
    }

    /// The first of the bounds that this row has to keep. Whether it is met is whether all of them
    /// are.
    pub fn reach(mut self, bounds: &[Reach]) -> Self {
        if let Some(first) = bounds.first() {
            self.reach = Some(format!("{} {} {}", first.bound, first.limit, first.unit).trim_end().to_owned());
            self.met = Some(bounds.iter().all(|bound| bound.met));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Own {
        pages: u32,
    }

    #[test]
    fn shared_fields_stand_beside_the_benchs_own() {
        let figure = |p50| Some(Summary { p50, p99: 9.0, n: 3 });
        let bounds = [Reach::at_most("a", 1.0, 2.0, "times"), Reach::at_least("b", 1.0, 2.0, "times")];
        let row = Measured::new("a call", "us", Own { pages: 4 })
            .ours(figure(1.5))
            .rival("fork", figure(80.0))
            .rival("pipe", None)
            .reach(&bounds);
        let json = serde_json::to_value(&row).expect("a row is JSON");
        assert_eq!(json["measure"], "a call");
        assert_eq!(json["ours"]["p50"], 1.5);
        assert_eq!(json["rivals"]["fork"]["n"], 3);
        assert!(json["rivals"].get("pipe").is_none(), "a rival that was not measured has no figure");
        assert_eq!(json["reach"], "at most 2 times");
        assert_eq!(json["met"], false, "one of two bounds is missed");
        assert_eq!(json["pages"], 4);
    }
}
