//! Telling: a thread that writes what the guard has to say, to stderr and to where events go, in order.
//!
//! Promises: a reader that does not read holds up this thread and nothing else: signals are handed on and hangs acted upon
//! meanwhile. What waits to be written is bounded ([`MOST`]); what comes on top is left out, and how much is told. At the end all
//! is written, unless a signal asks the guard not to wait for it. Events that cannot be written, on a disk that is full, are counted and told on
//! stderr; a line that was written in part ends before the next one begins.

use super::detector::About;
use super::program::Signals;
use super::show;
use crate::events;
use crate::out::{FAINT, WARN};
use orbit_ahd::Event;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Where events go, beside stderr.
pub struct Events {
    to: File,
    /// For people.
    name: String,
    /// Whether the last line was written in part.
    torn: bool,
    /// Events that could not be written since one was.
    lost: u64,
}

impl Events {
    /// To be appended to this file; `-` is stdout.
    pub fn open(path: &Path) -> Result<Events, String> {
        let (to, name) = match path {
            path if path.as_os_str() == "-" => {
                let stdout = io::stdout().as_fd().try_clone_to_owned();
                (stdout.map_err(|e| format!("cannot write events to stdout: {e}"))?.into(), "stdout".to_owned())
            }
            path => (events::append(path)?, path.display().to_string()),
        };
        Ok(Events { to, name, torn: false, lost: 0 })
    }

    /// Writes an event, before it how many were lost.
    fn write(&mut self, said: &Said, at: Duration) {
        match self.tell_lost(at).and_then(|()| self.line(said, at)) {
            Ok(()) => {}
            Err(e) => {
                if self.lost == 0 {
                    let name = &self.name;
                    complain(&format!("cannot write events to {name}: {e}: they are left out until it can be written"));
                }
                self.lost += 1;
            }
        }
    }

    /// Says how many events were lost, where they can be written again.
    fn tell_lost(&mut self, at: Duration) -> io::Result<()> {
        if self.lost == 0 {
            return Ok(());
        }
        let lost = format!("left out {} events: they could not be written", self.lost);
        self.line(&Said::Did(lost, 0), at)?;
        complain(&format!("events are written to {} again; {} were left out", self.name, self.lost));
        self.lost = 0;
        Ok(())
    }

    /// Nothing more comes.
    fn finish(&mut self, at: Duration) {
        if self.tell_lost(at).is_err() {
            complain(&format!("{} events could not be written to {}", self.lost, self.name));
        }
    }

    fn line(&mut self, said: &Said, at: Duration) -> io::Result<()> {
        let mut line = if self.torn { vec![b'\n'] } else { Vec::new() };
        json(&mut line, said, at)?;
        let mut left = &line[..];
        while !left.is_empty() {
            let n = match self.to.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                written => written?,
            };
            self.torn = left[n - 1] != b'\n';
            left = &left[n..];
        }
        Ok(())
    }
}

fn complain(what: &str) {
    // Nobody is left to tell if stderr is closed.
    let _ = writeln!(anstream::stderr(), "{WARN}orbit guard:{WARN:#} {what}");
}

/// Something to tell.
enum Said {
    Event(Event),
    About(About),
    Did(String, i32),
}

impl Said {
    /// 1, and 1 for each stack.
    fn weight(&self) -> u64 {
        match self {
            Said::Event(Event::Hang(hang)) => 1 + hang.threads.len() as u64,
            _ => 1,
        }
    }
}

/// See the module's head.
pub struct Teller {
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
    /// Things left out and not told to be: added to by the guard, taken by the thread.
    missed: AtomicU64,
}

/// Most that waits to be written, by [`Said::weight`]. A stack takes some kilobytes.
const MOST: u64 = 10_000;
/// How often signals are looked for while the last things are written.
const LOOK: Duration = Duration::from_millis(50);

impl Teller {
    /// Times of events count from now. To be called with the signals blocked that only the guard's first thread is to get.
    pub fn start(events: Option<Events>) -> io::Result<Teller> {
        let (to, from) = channel();
        let (end, done) = channel();
        let counts = Arc::<Counts>::default();
        let shared = counts.clone();
        let began = Instant::now();
        let body = move || write_all(events, &from, &shared, began, end);
        std::thread::Builder::new().name("orbit-teller".into()).spawn(body)?;
        Ok(Teller { to, done, counts, began })
    }

    /// Tells an event.
    pub fn event(&self, event: Event) {
        self.say(Said::Event(event));
    }

    /// Tells how a module stands.
    pub fn about(&self, about: About) {
        self.say(Said::About(about));
    }

    /// Tells what the guard did.
    pub fn did(&self, what: String, pid: i32) {
        self.say(Said::Did(what, pid));
    }

    fn say(&self, said: Said) {
        let weight = said.weight();
        if self.counts.waiting.load(Relaxed) + weight > MOST {
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
        while let Err(RecvTimeoutError::Timeout) = self.done.recv_timeout(LOOK) {
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
        events.finish(began.elapsed());
    }
    drop(end);
}

fn write(events: &mut Option<Events>, said: &Said, at: Duration) {
    let _ = match said {
        Said::Event(event) => show::text(&mut anstream::stderr().lock(), event),
        Said::About(about) => show::text_about(&mut anstream::stderr().lock(), about),
        Said::Did(what, _) => writeln!(anstream::stderr(), "{FAINT}orbit guard: {what}{FAINT:#}"),
    };
    if let Some(events) = events {
        events.write(said, at);
    }
}

fn json(to: &mut impl Write, said: &Said, at: Duration) -> io::Result<()> {
    match said {
        Said::Event(event) => show::json(to, event, at),
        Said::About(about) => show::json_about(to, about, at),
        Said::Did(what, pid) => show::json_did(to, what, *pid, at),
    }
}
