//! A thread that writes what the guard has to report, to stderr and to where events go, in order.
//!
//! Promises: a reader that does not read blocks this thread and nothing else: signals are handed on
//! and hangs acted upon meanwhile. What waits to be written is bounded ([`MAX_WAITING_WEIGHT`]);
//! what comes on top is left out, and how much is reported. At the end all is written, unless a
//! signal asks the guard not to wait for it. Where events go, and what becomes of those that cannot
//! be written: [`orbit_console::events`].

use super::detector::About;
use super::program::Signals;
use super::show;
use orbit_ahd::Event;
use orbit_console::events::Events;
use orbit_console::out::{self, FAINT};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Something to report.
enum Said {
    /// With the command line of the process that it is about, if it was read.
    Event(Event, String),
    About(About),
    Did(String, i32),
}

impl Said {
    /// 1, and 1 for each stack.
    fn weight(&self) -> u64 {
        match self {
            Said::Event(Event::Hang(hang), _) => 1 + hang.threads.len() as u64,
            _ => 1,
        }
    }
}

/// See the module's head.
pub struct Writer {
    to: Sender<(Said, Duration)>,
    /// Disconnected once the thread has written all.
    done: Receiver<()>,
    counts: Arc<Counts>,
    began: Instant,
}

/// Shared with the thread.
#[derive(Default)]
struct Counts {
    /// The weight of what waits: added to before it is sent, taken off once it is written.
    waiting: AtomicU64,
    /// Things left out and not reported as such: added to by the guard, taken by the thread.
    missed: AtomicU64,
}

/// Most that waits to be written, by [`Said::weight`]. A stack takes some kilobytes.
const MAX_WAITING_WEIGHT: u64 = 10_000;
/// How often signals are checked while the last reports are written.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Writer {
    /// Times of events count from now. To be called with the signals blocked that only the guard's
    /// first thread is to get.
    pub fn start(events: Option<Events>) -> io::Result<Writer> {
        let (to, from) = channel();
        let (end, done) = channel();
        let counts = Arc::<Counts>::default();
        let shared = counts.clone();
        let began = Instant::now();
        let body = move || write_all(events, &from, &shared, began, end);
        std::thread::Builder::new().name("orbit-writer".into()).spawn(body)?;
        Ok(Writer { to, done, counts, began })
    }

    /// Reports an event, with the command line of the process that it is about (may be empty).
    pub fn event(&self, event: Event, command: String) {
        self.say(Said::Event(event, command));
    }

    /// Reports the state of a module.
    pub fn about(&self, about: About) {
        self.say(Said::About(about));
    }

    /// Reports what the guard did.
    pub fn did(&self, what: String, pid: i32) {
        self.say(Said::Did(what, pid));
    }

    fn say(&self, said: Said) {
        let weight = said.weight();
        if self.counts.waiting.load(Relaxed) + weight > MAX_WAITING_WEIGHT {
            self.counts.missed.fetch_add(1, Relaxed);
            return;
        }
        self.counts.waiting.fetch_add(weight, Relaxed);
        // The thread does not end before this is dropped.
        let _ = self.to.send((said, self.began.elapsed()));
    }

    /// Waits until all is written, or a signal came.
    pub fn finish(self, signals: &mut Signals) {
        drop(self.to);
        // What came before was for the program.
        signals.forget();
        while let Err(RecvTimeoutError::Timeout) = self.done.recv_timeout(SIGNAL_CHECK_INTERVAL) {
            if signals.take(None).iter().any(|signal| *signal != libc::SIGWINCH) {
                return;
            }
        }
    }
}

/// The thread. A reader that has gone away does not end it: what is written then is lost.
fn write_all(
    mut events: Option<Events>,
    from: &Receiver<(Said, Duration)>,
    counts: &Counts,
    began: Instant,
    end: Sender<()>,
) {
    for (said, at) in from {
        write(&mut events, &said, at);
        counts.waiting.fetch_sub(said.weight(), Relaxed);
        let left_out = counts.missed.swap(0, Relaxed);
        if left_out != 0 {
            write(&mut events, &Said::Did(format!("left out {left_out} reports: nobody read them in time"), 0), at);
        }
    }
    if let Some(events) = &mut events {
        let at = began.elapsed();
        events.finish(|lost| left_out(lost, at));
    }
    drop(end);
}

fn write(events: &mut Option<Events>, said: &Said, at: Duration) {
    // With stderr closed there is no reader.
    let _ = out::say(|to| match said {
        Said::Event(event, _) => show::text(to, event),
        Said::About(about) => show::text_about(to, about),
        Said::Did(what, _) => writeln!(to, "{FAINT}orbit watch: {what}{FAINT:#}"),
    });
    if let Some(events) = events {
        events.write(&json(said, at), |lost| left_out(lost, at));
    }
}

/// The line for events that were lost.
fn left_out(lost: u64, at: Duration) -> Vec<u8> {
    json(&Said::Did(format!("left out {lost} events: they could not be written"), 0), at)
}

fn json(said: &Said, at: Duration) -> Vec<u8> {
    let mut line = Vec::new();
    // Memory takes all.
    let _ = match said {
        Said::Event(event, command) => show::json(&mut line, event, command, at),
        Said::About(about) => show::json_about(&mut line, about, at),
        Said::Did(what, pid) => show::json_did(&mut line, what, *pid, at),
    };
    line
}
