//! Where an orbit is in its life, as a type: what follows from what, and what is known of why.

use std::sync::Arc;
use std::time::Instant;

use crate::call::Outcome;
use crate::channel::UpSide;
use crate::error::Error;
use crate::own::Own;
use crate::stuck::Asleep;
use crate::template::Template;

/// By what a process comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedBy {
    Itself,
    /// The supervisor, for a call past its deadline: it ends by itself, and leaves its stack, or is
    /// killed at this time.
    Deadline {
        killed_at: Instant,
    },
    /// Main, because the program asked for it.
    Kill,
    /// Main, because the memory around it came to an end.
    Memory,
    /// Main, because what the process wrote makes no sense.
    Nonsense,
    /// Main, for a task that slept on a lock which nothing can release: it ends by itself, and
    /// leaves its stack, or is killed at this time.
    Stuck {
        killed_at: Instant,
    },
}

/// An orbit's process as main holds it.
pub(crate) struct Process {
    pub template: Arc<Template>,
    pub pid: i32,
    pub pidfd: Own,
    pub socket: Own,
    pub up: Arc<UpSide>,
    /// The number of the first call that is its own.
    pub first_call: u32,
    pub ended_by: EndedBy,
}

/// Why a start failed.
pub(crate) enum WhyDown {
    /// There was no process, for this reason.
    Failed(String),
    /// Its process ended so before it was up.
    Ended(Outcome),
}

/// A stage of an orbit's life.
pub(crate) enum Stage {
    /// It has a process.
    Running(Process),
    /// It has none and will get one, from this template if that lives: the one of the process
    /// before, if there was one.
    Down(Option<Arc<Template>>),
    /// It has none and gets none: for this reason, or because its restart policy says so.
    Ended(Option<Error>),
    /// Main destroyed it.
    Destroyed,
}

/// An orbit's stage, and what is known of how it came there. Under the orbit's lock.
pub(crate) struct Life {
    stage: Stage,
    /// Why the last start failed, if it did.
    why_down: Option<WhyDown>,
    /// What the process wrote that makes no sense, if it did.
    nonsense: Option<String>,
    /// The lock that the task was seen asleep on, if so.
    asleep: Option<Asleep>,
    /// The process whose end the supervisor asks the template about: it is reported once.
    asked: Option<i32>,
    /// Failures since a call last returned.
    failures: u32,
}

impl Life {
    /// Before the first process.
    pub fn new() -> Life {
        Life { stage: Stage::Down(None), why_down: None, nonsense: None, asleep: None, asked: None, failures: 0 }
    }

    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Its process, while it runs.
    #[inline(always)]
    pub fn process(&self) -> Option<&Process> {
        match &self.stage {
            Stage::Running(process) => Some(process),
            _ => None,
        }
    }

    /// The memory that its process writes.
    pub fn up(&self) -> Option<Arc<UpSide>> {
        self.process().map(|process| process.up.clone())
    }

    /// Its process, if that was not condemned: it is listened to, and may yet return.
    #[inline(always)]
    pub fn healthy_process(&self) -> Option<&Process> {
        self.process().filter(|process| process.ended_by == EndedBy::Itself)
    }

    /// While it is down: the template that the next process comes from.
    pub fn origin(&self) -> Option<&Arc<Template>> {
        match &self.stage {
            Stage::Down(origin) => origin.as_ref(),
            _ => None,
        }
    }

    /// The template of its process, or while it is down of its next one, where that is known.
    pub fn template(&self) -> Option<&Arc<Template>> {
        self.process().map(|process| &process.template).or(self.origin())
    }

    pub fn is_down(&self) -> bool {
        matches!(self.stage, Stage::Down(_))
    }

    pub fn is_destroyed(&self) -> bool {
        matches!(self.stage, Stage::Destroyed)
    }

    /// It has a process.
    pub fn begin(&mut self, process: Process) {
        self.stage = Stage::Running(process);
    }

    /// Its process has ended: it is down. Returns the process, and counts a failure.
    pub fn end_process(&mut self) -> Option<Process> {
        let origin = self.process()?.template.clone();
        self.failures += 1;
        match std::mem::replace(&mut self.stage, Stage::Down(Some(origin))) {
            Stage::Running(process) => Some(process),
            _ => None,
        }
    }

    /// It gets no further process.
    pub fn end(&mut self, why: Option<Error>) {
        self.stage = Stage::Ended(why);
    }

    /// Main destroys it; returns the stage in which it was.
    pub fn destroy(&mut self) -> Stage {
        std::mem::replace(&mut self.stage, Stage::Destroyed)
    }

    /// Condemns its process for this reason; the first nonsense stays the reason.
    pub fn condemn(&mut self, why: EndedBy) {
        if let Stage::Running(process) = &mut self.stage
            && process.ended_by != EndedBy::Nonsense
        {
            process.ended_by = why;
        }
    }

    /// Why its process was condemned, if it was.
    pub fn condemned(&self) -> Option<EndedBy> {
        self.process().map(|process| process.ended_by).filter(|by| *by != EndedBy::Itself)
    }

    /// Why the last start failed, to be appended to a sentence; empty if it did not.
    pub fn why_down(&self) -> String {
        // Under the orbit's lock, where nothing waits for names.
        match &self.why_down {
            None => String::new(),
            Some(WhyDown::Failed(why)) => format!(": the last start failed: {why}"),
            Some(WhyDown::Ended(end)) => {
                let end = end.clone().without_waiting();
                format!(": the last start failed: the process was not up yet when it ended: {end}")
            }
        }
    }

    /// Notes why a start failed; `None`: it did not.
    pub fn note_start(&mut self, failed: Option<WhyDown>) {
        self.why_down = failed;
    }

    /// What the process wrote makes no sense.
    pub fn note_nonsense(&mut self, what: String) {
        self.nonsense = Some(what);
    }

    /// What the process wrote that makes no sense; known once.
    pub fn take_nonsense(&mut self) -> Option<String> {
        self.nonsense.take()
    }

    /// The lock that the task was seen asleep on.
    pub fn asleep(&self) -> Option<Asleep> {
        self.asleep
    }

    /// The task was seen asleep on this lock, or awake.
    pub fn note_asleep(&mut self, asleep: Option<Asleep>) {
        self.asleep = asleep;
    }

    /// The process whose end the template is being asked about.
    pub fn asked(&self) -> Option<i32> {
        self.asked
    }

    /// The template is being asked about the end of this process, or no longer.
    pub fn note_asked(&mut self, pid: Option<i32>) {
        self.asked = pid;
    }

    /// Failures since a call last returned.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// A call has returned: the row of failures ends.
    pub fn note_return(&mut self) {
        self.failures = 0;
    }
}
