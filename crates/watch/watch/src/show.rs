//! Reports, for people and for machines.
//!
//! For people: clear text on stderr, in colour on a terminal. For machines: one JSON object a line;
//! every line has `event`, `time_ms` (since the guard began) and `time` (by the clock, RFC 3339).
//!
//! Names come from the watched program, which may choose any: for people what is no letter, line
//! breaks and a terminal's orders among it, is shown as `\n` or `\u{1b}` ([`Harmless`]); JSON has
//! escapes of its own.

use super::detector::About;
use orbit_ahd::{Event, Hang, Involved, Kind, Unit, fold};
use orbit_console::harmless::Harmless;
use orbit_console::out::{BAD, FAINT, GOOD, HEAD, WARN};
use orbit_console::time::rfc3339;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

/// Lines of a stack in text; JSON has all frames.
const MAX_SHOWN_LINES: usize = 8;

/// CPU time of a process from which on the text names sections that no thread entered, ns.
const NAME_UNUSED_AFTER_CPU_NS: u64 = 100_000_000;

fn ms(d: Duration) -> f64 {
    d.as_micros() as f64 / 1e3
}

/// An event as one line of JSON; `at` is the time since the guard began. A hang has the command
/// line of its process.
pub fn json(to: &mut impl Write, event: &Event, command: &str, at: Duration) -> io::Result<()> {
    line(to, value(event, command), at)
}

fn value(event: &Event, command: &str) -> Value {
    let mut value = orbit_ahd::json::value(event);
    if let Event::Hang(_) = event {
        value["command"] = json!(command);
    }
    value
}

/// An event of a recording: `at` is the time in it, which says nothing of the time by the clock.
pub fn json_replayed(to: &mut impl Write, event: &Event, command: &str, at: Duration) -> io::Result<()> {
    let mut value = value(event, command);
    value["time_ms"] = json!(ms(at));
    writeln!(to, "{value}")
}

/// How a module stands, as one line of JSON.
pub fn json_about(to: &mut impl Write, about: &About, at: Duration) -> io::Result<()> {
    let About { module, state, text, pid } = about;
    line(to, json!({"event": "module", "module": module, "state": state, "text": text, "pid": pid}), at)
}

/// The same for people; that all is as it should be is left out.
pub fn text_about(to: &mut impl Write, about: &About) -> io::Result<()> {
    let About { module, state, text, .. } = about;
    let (quiet, text) = (text == "as asked", Harmless(text));
    match *state {
        "loaded" => Ok(()),
        "in-process" if quiet => Ok(()),
        "in-process" => writeln!(to, "{FAINT}orbit watch: the detection runs in the guard itself: {text}{FAINT:#}"),
        "said" => writeln!(to, "orbit watch: module {module}: {text}"),
        "reloaded" => writeln!(to, "{GOOD}orbit watch:{GOOD:#} module {module} was loaded again"),
        _ => writeln!(to, "{WARN}orbit watch:{WARN:#} module {module} {state}: {text}"),
    }
}

/// Something the guard itself did, as one line of JSON.
pub fn json_did(to: &mut impl Write, did: &str, pid: i32, at: Duration) -> io::Result<()> {
    line(to, json!({"event": "action", "did": did, "pid": pid}), at)
}

fn line(to: &mut impl Write, mut value: Value, at: Duration) -> io::Result<()> {
    value["time_ms"] = json!(ms(at));
    value["time"] = json!(rfc3339(SystemTime::now()));
    writeln!(to, "{value}")?;
    to.flush()
}

/// An event for people; what only machines want to know is left out.
pub fn text(to: &mut impl Write, event: &Event) -> io::Result<()> {
    match event {
        Event::Joined { .. } | Event::Left { .. } | Event::Learnt { .. } => Ok(()),
        Event::Hang(h) => hang(to, h),
        Event::Recovered { pid, tid, kind, after } => {
            let kind = kind.word();
            writeln!(
                to,
                "{GOOD}orbit watch:{GOOD:#} thread {tid} of process {pid} continued, {:.1} s after the report of a \
                 {kind} hang",
                after.as_secs_f64()
            )
        }
        Event::Sections { pid, list } => {
            for s in list {
                let (section, function) = (Harmless(&s.section), Harmless(&s.function));
                let begin = format!("{FAINT}orbit watch: section {section} ({function}) of process {pid}:");
                match (s.hits, s.windows) {
                    // Children that live for a moment would fill a log.
                    (0, _) if s.cpu_ns < NAME_UNUSED_AFTER_CPU_NS => {}
                    (0, 0) => writeln!(to, "{begin} was not probed{FAINT:#}")?,
                    (0, _) => writeln!(to, "{begin} no hits{FAINT:#}")?,
                    _ => writeln!(
                        to,
                        "{begin} {} hits of {:.1} us each, {:.2} % of the {:.1} s of CPU it used{FAINT:#}",
                        s.hits,
                        s.ns_per_hit / 1e3,
                        s.share * 100.0,
                        s.cpu_ns as f64 / 1e9
                    )?,
                }
            }
            Ok(())
        }
        Event::Trouble { text, .. } => writeln!(to, "{WARN}orbit watch:{WARN:#} {}", Harmless(text)),
    }
}

fn hang(to: &mut impl Write, h: &Hang) -> io::Result<()> {
    let kind = h.kind.word();
    writeln!(
        to,
        "{BAD}orbit watch: {kind} hang{BAD:#} in process {} ({}), thread {} ({})",
        h.pid,
        Harmless(&h.comm),
        h.tid,
        h.sure
    )?;
    writeln!(to, "  {HEAD}{}{HEAD:#}", Harmless(&h.why))?;
    if let Some(section) = &h.section {
        writeln!(to, "  in section {}", Harmless(section))?;
    }
    writeln!(to, "  {FAINT}{}{FAINT:#}", figures(h))?;
    for (nth, t) in h.threads.iter().enumerate() {
        let (comm, does) = (Harmless(&t.comm), Harmless(&t.does));
        writeln!(to, "  {HEAD}thread {} ({comm}){HEAD:#} of process {} {does}", t.tid, t.pid)?;
        let places = |t: &Involved| t.stack.iter().map(|f| f.address).collect::<Vec<u64>>();
        let same = |other: &&Involved| !t.stack.is_empty() && places(other) == places(t) && other.python == t.python;
        if let Some(other) = h.threads[..nth].iter().find(same) {
            writeln!(to, "      {FAINT}with the stack of thread {}{FAINT:#}", other.tid)?;
            continue;
        }
        for f in &t.python {
            let line = f.line.map_or_else(String::new, |l| format!(":{l}"));
            let (function, file) = (Harmless(&f.function), Harmless(&f.file));
            writeln!(to, "      {function} at {file}{line} {FAINT}(Python){FAINT:#}")?;
        }
        let (lines, left) = fold::shown(&t.stack, MAX_SHOWN_LINES);
        for line in lines {
            writeln!(to, "      {}", Harmless(line))?;
        }
        if left > 0 {
            writeln!(to, "      {FAINT}and {left} more frames{FAINT:#}")?;
        }
        if let Some(note) = &t.note {
            writeln!(to, "      {FAINT}{}{FAINT:#}", Harmless(note))?;
        }
    }
    if !h.runtime.is_empty() {
        writeln!(to, "  {HEAD}its runtime says:{HEAD:#}")?;
    }
    for line in &h.runtime {
        writeln!(to, "      {}", Harmless(line))?;
    }
    to.flush()
}

/// How much it did or waited, against what is usual and allowed, and since when. Of a wait progress
/// is the time since.
fn figures(h: &Hang) -> String {
    let what = match h.unit {
        Unit::CpuNs => "of CPU",
        // Whoever computes does not wait.
        Unit::WaitNs if h.kind == Kind::Busy => "without progress",
        Unit::WaitNs => "of waiting",
    };
    let value = |n: u64| format!("{:.1} ms", n as f64 / 1e6);
    let usual = h.usual.map_or_else(String::new, |u| match u {
        0..1000 => ", usually less than a microsecond".to_owned(),
        _ => format!(", usually {:.3} ms", u as f64 / 1e6),
    });
    // A ring is a hang from its first moment.
    let allowed = if h.check_value == 0 { String::new() } else { format!(", allowed {}", value(h.check_value)) };
    let since = if h.unit == Unit::WaitNs { String::new() } else { format!("since {:.0} ms, ", ms(h.since)) };
    let reported = format!("reported {:.0} ms after it could be known", ms(h.latency));
    format!("{} {what}{usual}{allowed}; {since}{reported}", value(h.progress))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        for (text, shown) in [
            ("plain \"it's\" C:\\x", "plain \"it's\" C:\\x"),
            ("a\nb\r\t", "a\\nb\\r\\t"),
            ("'\u{1b}[31m\u{9b}0m\u{7f}", "'\\u{1b}[31m\\u{9b}0m\\u{7f}"),
            ("\u{202e}turned\u{2028}", "\\u{202e}turned\\u{2028}"),
            (
                "\u{433}\u{43e}\u{440}\u{43e}\u{434} e\u{301} \u{65e5}\u{672c}",
                "\u{433}\u{43e}\u{440}\u{43e}\u{434} e\u{301} \u{65e5}\u{672c}",
            ),
        ] {
            assert_eq!(Harmless(text).to_string(), shown);
        }
    }
}
