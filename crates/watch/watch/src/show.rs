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
use serde::Serialize;
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
    line(to, event, command_of(event, command), at)
}

/// What each line has beside its event.
#[derive(Serialize)]
struct Line<'a, T> {
    #[serde(flatten)]
    event: &'a T,
    /// The command line of the process that hangs; empty where it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
    /// When, in ms from the start of the watcher, or of the recording.
    time_ms: f64,
    /// The same by the clock, RFC 3339; not of a recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
}

/// What the guard reports of itself.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Own<'a> {
    /// How a module stands.
    Module {
        /// Its name.
        module: &'a str,
        /// `loaded`, `failed`, `reloaded`, `gave up`, `refused`, `said`, `dropped`, `unloaded` or
        /// `in-process`.
        state: &'a str,
        /// Why, or what it said.
        text: &'a str,
        /// Its process; 0 if it has none.
        pid: i32,
    },
    /// Something that the watcher did.
    Action {
        /// A sentence.
        did: &'a str,
        /// The process that it was done to; 0 if to none.
        pid: i32,
    },
}

fn command_of<'a>(event: &Event, command: &'a str) -> Option<&'a str> {
    matches!(event, Event::Hang(_)).then_some(command)
}

/// An event of a recording: `at` is the time in it, which says nothing of the time by the clock.
pub fn json_replayed(to: &mut impl Write, event: &Event, command: &str, at: Duration) -> io::Result<()> {
    write(to, &Line { event, command: command_of(event, command), time_ms: ms(at), time: None })
}

/// How a module stands, as one line of JSON.
pub fn json_about(to: &mut impl Write, about: &About, at: Duration) -> io::Result<()> {
    let About { module, state, text, pid } = about;
    line(to, &Own::Module { module, state, text, pid: *pid }, None, at)
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
    line(to, &Own::Action { did, pid }, None, at)
}

fn line(to: &mut impl Write, event: &impl Serialize, command: Option<&str>, at: Duration) -> io::Result<()> {
    write(to, &Line { event, command, time_ms: ms(at), time: Some(rfc3339(SystemTime::now())) })?;
    to.flush()
}

fn write(to: &mut impl Write, line: &Line<'_, impl Serialize>) -> io::Result<()> {
    // By way of a value, which has its fields in order of their names.
    writeln!(to, "{}", serde_json::to_value(line)?)
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
        let in_python = t.python_name.as_ref().map_or_else(String::new, |name| format!(", in Python {name}"));
        let in_python = Harmless(&in_python);
        writeln!(to, "  {HEAD}thread {} ({comm}{in_python}){HEAD:#} of process {} {does}", t.tid, t.pid)?;
        // What only a runtime knows has no address.
        let places = |t: &Involved| t.stack.iter().map(|f| (f.address, f.function.clone(), f.line)).collect::<Vec<_>>();
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
/// is the time since, and the sentence has the longest before.
fn figures(h: &Hang) -> String {
    let what = match h.unit {
        Unit::CpuNs => "of CPU",
        // Whoever computes does not wait.
        Unit::WaitNs if h.kind == Kind::Busy => "without progress",
        Unit::WaitNs => "of waiting",
    };
    let value = |n: u64| format!("{:.1} ms", n as f64 / 1e6);
    let usual = h.usual.filter(|_| h.unit == Unit::CpuNs).map_or_else(String::new, |u| match u {
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
    fn what_the_guard_reports_of_itself_is_described() {
        let about = About { module: "ahd".into(), state: "loaded", text: "as asked".into(), pid: 7 };
        let (mut lines, at) = (Vec::new(), Duration::from_micros(1_500_250));
        json_about(&mut lines, &about, at).expect("memory takes all");
        json_did(&mut lines, "sent signal 15", 7, at).expect("memory takes all");
        json(&mut lines, &Event::Left { pid: 7 }, "not of a hang", at).expect("memory takes all");
        let lines = String::from_utf8(lines).expect("text");
        let names: Vec<_> = lines
            .lines()
            .map(|line| {
                let line = serde_json::from_str(line).expect("JSON");
                let line = orbit_testing::described("watch-events", line);
                assert_eq!(line["time_ms"], 1500.25);
                line["event"].clone()
            })
            .collect();
        assert_eq!(names, ["module", "action", "left"]);
    }

    #[test]
    fn of_a_wait_the_longest_before_is_not_called_usual() {
        let hang = |unit| Hang {
            kind: Kind::Blocked,
            pid: 1,
            tid: 1,
            comm: String::new(),
            section: None,
            progress: 5_000_000_000,
            usual: Some(0),
            check_value: 5_000_000_000,
            unit,
            since: Duration::from_secs(5),
            latency: Duration::ZERO,
            why: String::new(),
            sure: orbit_ahd::Sure::Guess,
            threads: Vec::new(),
            cycle: Vec::new(),
            runtime: Vec::new(),
        };
        let wait = "5000.0 ms of waiting, allowed 5000.0 ms; reported 0 ms after it could be known";
        assert_eq!(figures(&hang(Unit::WaitNs)), wait);
        assert!(figures(&hang(Unit::CpuNs)).contains("usually less than a microsecond"));
    }

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
