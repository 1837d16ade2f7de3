//! The stack of a crash: copied before the rollback, unwound and named after it, in a thread of its
//! own.

use crate::report::{Event, Reporter};
use crate::shared::CrashReport;
use orbit_inspect::stacks::{Copies, Unwinder};
use orbit_linux::sched;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// How long the stack of a crash at the same instruction is not taken again: a program that crashes
/// without end is not slowed down.
const SAME: Duration = Duration::from_secs(1);
/// Niceness of the thread that names stacks.
const LEAST_EAGER: i32 = 19;

/// A copied stack, and which crash it is of.
struct Job {
    number: u64,
    copies: Copies,
}

/// Takes the stacks of one program.
pub(crate) struct Stacks {
    unwinder: Option<Unwinder>,
    names: Option<SyncSender<Job>>,
    last: Option<(u64, Instant)>,
}

impl Stacks {
    /// For the process.
    pub fn new(pid: i32, reporter: &Reporter) -> Stacks {
        Stacks { unwinder: Unwinder::new(pid).ok(), names: start(pid, reporter.clone()), last: None }
    }

    /// Copies the stack of the thread that crashed and waits for the keeper. Takes some 100 us.
    pub fn copy(&mut self, number: u64, crash: &CrashReport) -> Copied {
        let ip = crash.ip;
        let is_again = self.last.is_some_and(|(at, when)| at == ip && when.elapsed() < SAME);
        let (Some(unwinder), false) = (&mut self.unwinder, is_again) else { return Copied(None) };
        self.last = Some((ip, Instant::now()));
        Copied(Some(Job { number, copies: unwinder.copy_from(crash.tid, crash.regs) }))
    }

    /// Has it named and reported. One that comes while another is being named is left out.
    pub fn report(&mut self, copied: Copied) {
        let (Some(job), Some(names)) = (copied.0, &self.names) else { return };
        if let Err(TrySendError::Disconnected(_)) = names.try_send(job) {
            self.names = None;
        }
    }
}

/// A stack that was copied, if it was.
pub(crate) struct Copied(Option<Job>);

fn start(pid: i32, mut reporter: Reporter) -> Option<SyncSender<Job>> {
    let (names, jobs) = sync_channel::<Job>(1);
    let run = move || {
        // The program is replayed meanwhile. A kernel that denies it names them all the same.
        let _ = sched::set_nice(0, LEAST_EAGER);
        let mut unwinder = Unwinder::new(pid).ok();
        while let (Ok(job), Some(unwinder)) = (jobs.recv(), &mut unwinder) {
            let named = unwinder.name(job.copies).pop();
            let frames = named.map(|stack| stack.frames).unwrap_or_default();
            let frames: Vec<String> = frames.iter().map(ToString::to_string).collect();
            if !frames.is_empty() {
                reporter.report(&Event::Stack { number: job.number, frames });
            }
        }
    };
    std::thread::Builder::new().name("keep-stacks".into()).spawn(run).ok().map(|_| names)
}
