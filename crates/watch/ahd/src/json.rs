//! Events as JSON: how they leave the detector's process, and what machines read of them. The form
//! of each is derived from its type in `crate::event`; here is what its numbers are in JSON.
//!
//! Promises: what [`value`] writes, [`event`] reads back, times to the microsecond. Refuses: to
//! guess; what lacks a field or has one of another type is no event.

use crate::event::{Event, Hang};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The event as one JSON object; its `event` is `joined`, `left`, `hang`, `recovered`, `sections`
/// or `trouble`.
pub fn value(event: &Event) -> Value {
    of(event)
}

/// The event that a JSON object is; `None` if it is none.
pub fn event(value: &Value) -> Option<Event> {
    Event::deserialize(value).ok()
}

/// A hang alone, in the form of its event.
pub fn of_hang(hang: &Hang) -> Value {
    let mut value = of(hang);
    value["event"] = "hang".into();
    value
}

fn of(event: &impl Serialize) -> Value {
    serde_json::to_value(event).expect("texts, numbers and lists have a form in JSON")
}

/// Durations as milliseconds, to the microsecond.
pub(crate) mod ms {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use std::time::Duration;

    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_micros() as f64 / 1e3)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let us = f64::deserialize(from)? * 1e3;
        // Beyond 2^53 us, 285 years, a float no longer counts whole ones.
        let is_time = (0.0..9e15).contains(&us);
        is_time.then(|| Duration::from_micros(us.round() as u64)).ok_or_else(|| de::Error::custom("no time"))
    }
}

/// Nanoseconds as milliseconds.
pub(crate) mod ns_as_ms {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(ns: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(*ns as f64 / 1e6)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        f64::deserialize(from).map(|ms| (ms * 1e6).round() as u64)
    }
}

/// A share from 0 to 1 as percent.
pub(crate) mod percent {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(share: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(share * 100.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        f64::deserialize(from).map(|percent| percent / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Edge, Involved, Kind, SectionUse, Unit};
    use orbit_inspect::Sure;
    use orbit_inspect::python::PyFrame;
    use orbit_inspect::stacks::Frame;
    use serde_json::json;
    use std::time::Duration;

    fn a_hang() -> Event {
        let frame = Frame {
            address: u64::MAX,
            module: "/bin/x".into(),
            function: Some("f<\"a\">".into()),
            file: None,
            line: Some(7),
            offset: 0x10,
            inlined: true,
            sure: Sure::Likely,
            cfa: None,
        };
        let python = PyFrame { function: "g".into(), file: "g.py".into(), line: None };
        let thread = Involved {
            pid: 1,
            tid: 2,
            comm: "x".into(),
            python_name: Some("reads".into()),
            does: "spins".into(),
            stack: vec![frame],
            python: vec![python],
            note: Some("cut".into()),
        };
        let edge = Edge { pid: 1, tid: 2, waits_for: "mutex 0x1".into(), held_by: 3, sure: Sure::Certain };
        Event::Hang(Box::new(Hang {
            kind: Kind::Busy,
            pid: 1,
            tid: 2,
            comm: "x\n".into(),
            section: None,
            progress: u64::MAX,
            usual: Some(3),
            check_value: 4,
            unit: Unit::CpuNs,
            since: Duration::from_micros(1_234_567),
            latency: Duration::from_micros(1),
            why: "because".into(),
            sure: Sure::Guess,
            threads: vec![thread],
            cycle: vec![edge],
            runtime: vec!["3 goroutines".into()],
        }))
    }

    #[test]
    fn what_is_written_is_read_back() {
        let after = Duration::from_millis(1500);
        let used = SectionUse {
            section: "a".into(),
            function: "f".into(),
            file: "/bin/x".into(),
            hits: 3,
            ns_per_hit: 812.5,
            cpu_ns: 2_500_000,
            share: 0.25,
            windows: 2,
        };
        for e in [
            a_hang(),
            Event::Joined { pid: 5, comm: "y".into() },
            Event::Left { pid: 5 },
            Event::Recovered { pid: 5, tid: 6, kind: Kind::Blocked, after },
            Event::Learnt { pid: 5, tid: 6 },
            Event::Trouble { pid: 5, text: "no".into() },
            Event::Sections { pid: 5, list: vec![used] },
        ] {
            let written = value(&e);
            let read: Value = serde_json::from_str(&written.to_string()).expect("JSON");
            let again = event(&read).unwrap_or_else(|| panic!("{written}"));
            assert_eq!(value(&again), written);
            let mut line = written;
            line["time_ms"] = json!(0.5);
            if let Event::Hang(_) = e {
                line["command"] = json!("x -y");
            }
            orbit_testing::described("watch-events", line);
        }
    }

    #[test]
    fn what_lacks_a_field_is_no_event() {
        let whole = value(&a_hang());
        for field in whole.as_object().expect("an object").keys() {
            // `null` may stand for nothing known in these two.
            if ["section", "usual"].contains(&field.as_str()) {
                continue;
            }
            let mut cut = whole.clone();
            cut[field] = Value::Null;
            assert!(event(&cut).is_none(), "{field}");
        }
        assert!(event(&json!({"event": "left", "pid": 1u64 << 40})).is_none());
        assert!(event(&json!(["left"])).is_none());
    }
}
