//! Events as JSON: how they leave the detector's process, and what machines read of them.
//!
//! Promises: what [`value`] writes, [`event`] reads back, times to the microsecond. Refuses: to guess; what lacks a field or has
//! one of another type is no event.

use crate::event::{Edge, Event, Hang, Involved, Kind, SectionUse, Unit};
use orbit_inspect::Sure;
use orbit_inspect::python::PyFrame;
use orbit_inspect::stacks::Frame;
use serde_json::{Value, json};
use std::time::Duration;

/// The event as one JSON object; its `event` is `joined`, `left`, `hang`, `recovered`, `sections` or `trouble`.
pub fn value(event: &Event) -> Value {
    match event {
        Event::Joined { pid, comm } => json!({"event": "joined", "pid": pid, "comm": comm}),
        Event::Left { pid } => json!({"event": "left", "pid": pid}),
        Event::Hang(h) => of_hang(h),
        Event::Recovered { pid, tid, kind, after } => {
            json!({"event": "recovered", "pid": pid, "tid": tid, "kind": kind.word(), "after_ms": ms(*after)})
        }
        Event::Sections { pid, list } => {
            json!({"event": "sections", "pid": pid, "sections": list.iter().map(of_section).collect::<Vec<_>>()})
        }
        Event::Trouble { pid, text } => json!({"event": "trouble", "pid": pid, "text": text}),
    }
}

/// The event that a JSON object is; `None` if it is none.
pub fn event(value: &Value) -> Option<Event> {
    Some(match value["event"].as_str()? {
        "joined" => Event::Joined { pid: int(&value["pid"])?, comm: text(&value["comm"])? },
        "left" => Event::Left { pid: int(&value["pid"])? },
        "hang" => Event::Hang(Box::new(hang(value)?)),
        "recovered" => Event::Recovered {
            pid: int(&value["pid"])?,
            tid: int(&value["tid"])?,
            kind: kind(&value["kind"])?,
            after: time(&value["after_ms"])?,
        },
        "sections" => Event::Sections { pid: int(&value["pid"])?, list: all(&value["sections"], section)? },
        "trouble" => Event::Trouble { pid: int(&value["pid"])?, text: text(&value["text"])? },
        _ => return None,
    })
}

fn of_section(s: &SectionUse) -> Value {
    json!({
        "section": s.section, "function": s.function, "file": s.file, "hits": s.hits, "ns_per_hit": s.ns_per_hit,
        "cpu_ms": s.cpu_ns as f64 / 1e6, "share_percent": s.share * 100.0, "windows": s.windows,
    })
}

fn section(v: &Value) -> Option<SectionUse> {
    Some(SectionUse {
        section: text(&v["section"])?,
        function: text(&v["function"])?,
        file: text(&v["file"])?,
        hits: v["hits"].as_u64()?,
        ns_per_hit: v["ns_per_hit"].as_f64()?,
        cpu_ns: (v["cpu_ms"].as_f64()? * 1e6).round() as u64,
        share: v["share_percent"].as_f64()? / 100.0,
        windows: v["windows"].as_u64()?,
    })
}

/// A hang alone.
pub fn of_hang(h: &Hang) -> Value {
    let of_edge = |e: &Edge| {
        json!({
            "pid": e.pid, "tid": e.tid, "waits_for": e.waits_for, "held_by": e.held_by, "sure": e.sure.to_string(),
        })
    };
    json!({
        "event": "hang",
        "kind": h.kind.word(),
        "pid": h.pid,
        "tid": h.tid,
        "comm": h.comm,
        "section": h.section,
        "progress": h.progress,
        "usual": h.usual,
        "check_value": h.check_value,
        "unit": h.unit.word(),
        "since_ms": ms(h.since),
        "latency_ms": ms(h.latency),
        "why": h.why,
        "sure": h.sure.to_string(),
        "stacks": h.threads.iter().map(of_thread).collect::<Vec<_>>(),
        "cycle": h.cycle.iter().map(of_edge).collect::<Vec<_>>(),
        "runtime": h.runtime,
    })
}

fn of_thread(t: &Involved) -> Value {
    let python: Vec<Value> =
        t.python.iter().map(|f| json!({"function": f.function, "file": f.file, "line": f.line})).collect();
    let frames: Vec<Value> = t.stack.iter().map(of_frame).collect();
    json!({
        "pid": t.pid, "tid": t.tid, "comm": t.comm, "does": t.does, "note": t.note, "frames": frames, "python": python,
    })
}

fn of_frame(f: &Frame) -> Value {
    json!({
        "function": f.function, "file": f.file, "line": f.line, "module": f.module, "offset": f.offset,
        "address": f.address, "inlined": f.inlined, "sure": f.sure.to_string(),
    })
}

fn hang(v: &Value) -> Option<Hang> {
    Some(Hang {
        kind: kind(&v["kind"])?,
        pid: int(&v["pid"])?,
        tid: int(&v["tid"])?,
        comm: text(&v["comm"])?,
        section: maybe(&v["section"], text)?,
        progress: v["progress"].as_u64()?,
        usual: maybe(&v["usual"], Value::as_u64)?,
        check_value: v["check_value"].as_u64()?,
        unit: [Unit::CpuNs, Unit::Instructions, Unit::WaitNs].into_iter().find(|u| v["unit"] == u.word())?,
        since: time(&v["since_ms"])?,
        latency: time(&v["latency_ms"])?,
        why: text(&v["why"])?,
        sure: sure(&v["sure"])?,
        threads: all(&v["stacks"], thread)?,
        cycle: all(&v["cycle"], edge)?,
        runtime: all(&v["runtime"], text)?,
    })
}

fn thread(v: &Value) -> Option<Involved> {
    Some(Involved {
        pid: int(&v["pid"])?,
        tid: int(&v["tid"])?,
        comm: text(&v["comm"])?,
        does: text(&v["does"])?,
        stack: all(&v["frames"], frame)?,
        python: all(&v["python"], py_frame)?,
        note: maybe(&v["note"], text)?,
    })
}

fn frame(v: &Value) -> Option<Frame> {
    Some(Frame {
        address: v["address"].as_u64()?,
        module: text(&v["module"])?,
        function: maybe(&v["function"], text)?,
        file: maybe(&v["file"], text)?,
        line: maybe(&v["line"], int)?,
        offset: v["offset"].as_u64()?,
        inlined: v["inlined"].as_bool()?,
        sure: sure(&v["sure"])?,
        cfa: None,
    })
}

fn py_frame(v: &Value) -> Option<PyFrame> {
    Some(PyFrame { function: text(&v["function"])?, file: text(&v["file"])?, line: maybe(&v["line"], int)? })
}

fn edge(v: &Value) -> Option<Edge> {
    Some(Edge {
        pid: int(&v["pid"])?,
        tid: int(&v["tid"])?,
        waits_for: text(&v["waits_for"])?,
        held_by: int(&v["held_by"])?,
        sure: sure(&v["sure"])?,
    })
}

fn ms(d: Duration) -> f64 {
    d.as_micros() as f64 / 1e3
}

fn time(v: &Value) -> Option<Duration> {
    let us = v.as_f64()? * 1e3;
    // Beyond 2^53 us, 285 years, a float no longer counts whole ones.
    (0.0..9e15).contains(&us).then(|| Duration::from_micros(us.round() as u64))
}

fn int<T: TryFrom<i64>>(v: &Value) -> Option<T> {
    T::try_from(v.as_i64()?).ok()
}

fn text(v: &Value) -> Option<String> {
    Some(v.as_str()?.to_owned())
}

fn kind(v: &Value) -> Option<Kind> {
    [Kind::Busy, Kind::Blocked].into_iter().find(|k| *v == k.word())
}

fn sure(v: &Value) -> Option<Sure> {
    [Sure::Guess, Sure::Likely, Sure::Certain].into_iter().find(|s| *v == s.to_string())
}

/// `null` is nothing, all else must read.
fn maybe<T>(v: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Option<T>> {
    if v.is_null() { Some(None) } else { read(v).map(Some) }
}

fn all<T>(v: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    v.as_array()?.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            Event::Trouble { pid: 5, text: "no".into() },
            Event::Sections { pid: 5, list: vec![used] },
        ] {
            let written = value(&e);
            let read: Value = serde_json::from_str(&written.to_string()).expect("JSON");
            let again = event(&read).unwrap_or_else(|| panic!("{written}"));
            assert_eq!(value(&again), written);
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
