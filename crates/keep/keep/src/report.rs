//! What is reported: lines on stderr for people, lines of JSON for scripts.

use crate::ladder::Rung;
use crate::restore::Restored;
use orbit_console::events::Events;
use orbit_console::out;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Something that happened to the program.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The program is kept from now on.
    Kept {
        /// Whether its calls are logged.
        log: bool,
    },
    /// A thread was about to die of a signal.
    Crash {
        /// The thread.
        tid: i32,
        /// Its name.
        thread: String,
        /// The signal's name.
        signal: String,
        /// Address of the fault; of a signal that was sent, left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        address: Option<String>,
        /// The process that sent the signal, if one did (`kill`, `abort`).
        #[serde(skip_serializing_if = "Option::is_none")]
        sender: Option<i32>,
        /// Address of the instruction.
        ip: String,
        /// The file that the instruction is in, and where in it.
        place: String,
        /// Crashes of this program up to and with this one.
        number: u64,
    },
    /// A thread hangs, as another process has found.
    Hang {
        /// The thread.
        tid: i32,
        /// Its name.
        thread: String,
        /// The file that its instruction is in, and where in it.
        place: String,
        /// A sentence of the process that has found it.
        why: String,
        /// Hangs of this program up to and with this one.
        number: u64,
    },
    /// The stack of a crash.
    Stack {
        /// Which crash.
        number: u64,
        /// Its frames, innermost first.
        frames: Vec<String>,
    },
    /// The program was put back, and its log is replayed: nothing is claimed yet.
    Attempt {
        /// Which rung of the ladder.
        rung: Rung,
        /// Age of the checkpoint in ms.
        checkpoint_age_ms: f64,
        /// How long it stood still for it, in ms.
        stopped_ms: f64,
    },
    /// In a replay the program made another call than before: the next rung is tried.
    Diverged {
        /// Number of the call, and its descriptor.
        asked: (u32, i32),
        /// What the log has there.
        logged: (u32, i32),
    },
    /// A replay gave out other bytes than before: the next rung is tried.
    Differed {
        /// Outputs to sockets.
        replies: u64,
        /// Outputs to files and pipes.
        lines: u64,
        /// The descriptor of the last of them.
        fd: i32,
    },
    /// The program continues; with a log, its replay is proven.
    Recovered {
        /// Which rung of the ladder.
        rung: Rung,
        /// Whether nobody can see it.
        exact: bool,
        /// What is lost, or may be there twice.
        lost: Vec<String>,
        /// Connections that end.
        reset: Vec<String>,
        /// Calls answered from the log.
        calls: u64,
        /// Age of the checkpoint in ms.
        checkpoint_age_ms: f64,
        /// From the first crash's report to the program continuing, in ms.
        ms: f64,
        /// How long it stood still to be put back, in ms.
        stopped_ms: f64,
        /// What was put back.
        restored: Restored,
    },
    /// The program dies of its signal.
    GaveUp {
        /// Why.
        why: String,
    },
    /// The program has died and is about to be started again.
    Restart {
        /// Restarts up to and with this one.
        number: u64,
        /// The pause before it, in ms.
        pause_ms: f64,
    },
    /// Something of the program that is not rolled back.
    Limit {
        /// A sentence.
        text: String,
    },
    /// Something that needs attention.
    Warning {
        /// A sentence.
        text: String,
    },
    /// The program has exited.
    Exited {
        /// As a shell reports it; `None` for a child whose parent was faster.
        status: Option<u8>,
        /// Figures of the whole run.
        figures: Figures,
    },
}

/// The rungs, as [`Figures::by_rung`] counts them.
pub const RUNGS: [&str; 5] = ["newest", "older", "environment", "drop", "give-up"];

/// Figures of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// Checkpoints put off since a call was under way or the program was dying.
    pub put_off: u64,
    /// Half of the checkpoints made the program stand still for no longer, in us.
    pub pause_p50_us: f64,
    /// 99 of 100 did so for no longer, in us.
    pub pause_p99_us: f64,
    /// Pages copied in all.
    pub pages: u64,
    /// Bytes of pages held now.
    pub held_bytes: u64,
    /// Starts after a death: `--restart`.
    pub restarts: u64,
    /// Crashes.
    pub crashes: u64,
    /// Hangs that another process has found.
    pub hangs: u64,
    /// Crashes and hangs by rung: see [`RUNGS`].
    pub by_rung: [u64; RUNGS.len()],
    /// Crash positions at which going back to a checkpoint was enough.
    pub transient: u64,
    /// Crash positions at which it was not.
    pub deterministic: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    time: f64,
    /// The process that it is about.
    pid: i32,
    #[serde(flatten)]
    event: &'a Event,
}

/// Writes events. The reporters of a family write to one file.
#[derive(Clone)]
pub(crate) struct Reporter {
    events: Option<Arc<Mutex<Events>>>,
    quiet: bool,
    name: String,
    pid: i32,
}

impl Reporter {
    pub fn new(events: Option<Events>, quiet: bool, name: String) -> Reporter {
        Reporter { events: events.map(|events| Arc::new(Mutex::new(events))), quiet, name, pid: 0 }
    }

    /// The process that is reported about.
    pub fn set_pid(&mut self, pid: i32) {
        self.pid = pid;
    }

    /// What the program is called.
    pub fn program(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }

    /// One for a child of the program.
    pub fn of_child(&self, pid: i32) -> Reporter {
        Reporter { name: format!("{} {pid}", self.program()), pid, ..self.clone() }
    }

    pub fn report(&mut self, event: &Event) {
        if let Some(events) = &self.events {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let line = Line { time: since.as_secs_f64(), pid: self.pid, event };
            let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
            bytes.push(b'\n');
            let left_out = |lost| format!("{{\"event\":\"left-out\",\"count\":{lost}}}\n").into_bytes();
            // A panic of another reporter leaves the file as it was.
            events.lock().unwrap_or_else(PoisonError::into_inner).write(&bytes, left_out);
        }
        if let Some(text) = sentence(event).filter(|_| !self.quiet || matches!(event, Event::Warning { .. })) {
            // Nobody is left to read it if stderr is closed.
            let _ = out::say(|to| writeln!(to, "orbit keep: {}: {text}", self.name));
        }
    }

    /// For people only, unless they want quiet.
    pub fn note(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            // Nobody is left to read it if stderr is closed.
            let _ = out::say(|to| writeln!(to, "orbit keep: {}: {text}", self.name));
        }
    }

    pub fn limit(&mut self, text: String) {
        self.report(&Event::Limit { text });
    }

    pub fn warn(&mut self, text: impl Into<String>) {
        self.report(&Event::Warning { text: text.into() });
    }
}

/// In place of a call that the log has: see `side/confined.c`.
const UNLOGGED: u32 = 2003;
/// Frames of a stack that people are shown.
const SHOWN: usize = 8;

/// An event for people; `None` for what only scripts need.
fn sentence(event: &Event) -> Option<String> {
    Some(match event {
        Event::Kept { .. } => return None,
        Event::Crash { tid, thread, signal, address, sender, place, number, .. } => {
            let cause = match (address, sender) {
                (Some(address), _) => format!("at address {address}"),
                (None, Some(sender)) => format!("sent by process {sender}"),
                (None, None) => "of unknown cause".to_owned(),
            };
            format!("crash {number}: {signal} {cause} in thread {tid} ({thread}), {place}")
        }
        Event::Hang { tid, thread, place, why, number } => {
            format!("hang {number}: thread {tid} ({thread}), {place}: {why}")
        }
        Event::Stack { number, frames } => {
            let shown = frames.iter().take(SHOWN).map(|frame| format!("\n    {frame}")).collect::<String>();
            format!("stack of crash {number}:{shown}")
        }
        Event::Attempt { .. } => return None,
        Event::Recovered { rung, exact, checkpoint_age_ms, ms, restored, lost, reset, calls, .. } => {
            let way = match rung {
                Rung::Newest => "put back to the newest checkpoint",
                Rung::Older => "put back to an older checkpoint",
                Rung::Environment => {
                    "put back to a checkpoint, to continue with allocations padded and zeroed and frees delayed"
                }
                Rung::Drop => "put back to a checkpoint, to continue without the input that kills it",
                Rung::GiveUp => "given up",
            };
            let mut text =
                format!("{way} ({:.1} s old) in {ms:.1} ms: {} pages", checkpoint_age_ms / 1e3, restored.pages);
            if *calls > 0 {
                text += &format!(", {calls} calls replayed");
            }
            if *exact {
                text += "; nothing is lost";
            }
            for (what, list) in [("lost: ", lost), ("reset: ", reset), ("not as it was: ", &restored.left)] {
                for entry in list {
                    text += &format!("; {what}{entry}");
                }
            }
            text
        }
        Event::Diverged { asked, logged } if logged.0 == UNLOGGED => format!(
            "in the replay it was about to make a system call ({}) inside the C library, as stdio does, or by an \
             instruction of its own: such calls are in no log; not put back so",
            crate::place::call_name(asked.0),
        ),
        Event::Diverged { asked, logged } => format!(
            "in the replay it made call {} on {} where it had made call {} on {}: not put back so",
            asked.0, asked.1, logged.0, logged.1,
        ),
        Event::Differed { replies, lines, fd } => format!(
            "in the replay {replies} outputs to sockets and {lines} to files differ from what was given out, the last \
             on descriptor {fd}: not put back so"
        ),
        Event::GaveUp { why } => format!("given up: {why}; it dies of its signal"),
        Event::Restart { number, pause_ms } => {
            format!("restart {number}, in {:.1} s: what was only in its memory is lost", pause_ms / 1e3)
        }
        Event::Warning { text } | Event::Limit { text } => text.clone(),
        Event::Exited { figures, .. } if figures.crashes == 0 => return None,
        Event::Exited { status, figures } => format!(
            "exited with {}; {} crashes, {} of them given up; {} checkpoints, pause p50 {:.0} us, p99 {:.0} us",
            status.map_or_else(|| "unknown status".to_owned(), |status| format!("status {status}")),
            figures.crashes,
            figures.by_rung[4],
            figures.checkpoints,
            figures.pause_p50_us,
            figures.pause_p99_us
        ),
    })
}

/// Milliseconds.
pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event of each kind, with every field that may be missing once there and once not.
    fn each() -> Vec<Event> {
        let (text, number) = (|| "x".to_owned(), 1);
        let crash = |address, sender| Event::Crash {
            tid: 2,
            thread: text(),
            signal: "SIGSEGV".to_owned(),
            address,
            sender,
            ip: "0x1".to_owned(),
            place: text(),
            number,
        };
        let recovered = |restored| Event::Recovered {
            rung: Rung::Drop,
            exact: false,
            lost: vec![text()],
            reset: vec![text()],
            calls: 1,
            checkpoint_age_ms: 0.5,
            ms: 0.5,
            stopped_ms: 0.5,
            restored,
        };
        vec![
            Event::Kept { log: true },
            crash(Some("0x0".to_owned()), None),
            crash(None, Some(3)),
            Event::Hang { tid: 2, thread: text(), place: text(), why: text(), number },
            Event::Stack { number, frames: vec![text()] },
            Event::Attempt { rung: Rung::Environment, checkpoint_age_ms: 0.5, stopped_ms: 0.5 },
            Event::Diverged { asked: (1, -1), logged: (2, 3) },
            Event::Differed { replies: 1, lines: 2, fd: 3 },
            recovered(Restored::default()),
            recovered(Restored { left: vec![text()], ..Restored::default() }),
            Event::GaveUp { why: text() },
            Event::Restart { number, pause_ms: 0.5 },
            Event::Limit { text: text() },
            Event::Warning { text: text() },
            Event::Exited { status: None, figures: Figures::default() },
            Event::Exited { status: Some(139), figures: Figures::default() },
        ]
    }

    #[test]
    fn each_event_is_described() {
        for event in &each() {
            let line = serde_json::to_value(Line { time: 0.5, pid: 1, event }).expect("JSON");
            orbit_testing::described("keep-events", line);
        }
    }
}
