//! What a handle stands for, on the host's side: an attribute of one target, the rights to it, and
//! its guard.

use crate::error::{Error, Kind, Result};
use crate::manager::{AttributeClass, Manager};
use crate::region;
use crate::sets::Sets;
use orbit_linux::pidfd;
use orbit_sandbox_lib::abi::{GET, Grant, SET};
use orbit_sandbox_lib::guard::{Guard, Verdict};
use orbit_sandbox_lib::{attribute, sys};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// See the module's head. Made by [`crate::Host::grant`], which notes the attribute's value, so
/// that it can be put back also when the host is killed; given back by [`crate::Host::release`].
#[derive(Clone, Debug)]
pub struct Granted {
    pub(crate) manager: Arc<dyn Manager>,
    pub(crate) class: AttributeClass,
    pub(crate) target: i32,
    /// When the target began; 0: it is no process.
    pub(crate) began: u64,
    /// The target's life; `None` where it is a thread or no process.
    pub(crate) life: Option<Arc<OwnedFd>>,
    pub(crate) rights: u32,
    pub(crate) guard: Guard,
    pub(crate) original: i64,
    /// Its place in the region's ledger.
    pub(crate) entry: Option<usize>,
    pub(crate) sets: Arc<Sets>,
    /// When the target was checked last, of the CPU's counter.
    pub(crate) checked_at: Arc<AtomicU64>,
    /// As in the directory: nanoseconds of that counter.
    pub(crate) tick_ns: u64,
    pub(crate) journal: Arc<Journal>,
}

/// What the log says of a handle.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// The service's name.
    name: OnceLock<String>,
    /// Nothing is set, only written down.
    is_dry: AtomicBool,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// What became of which value that was asked for: its like are not repeated.
    line: Option<(Outcome, i64)>,
    /// The value that the log says was set.
    set: Option<i64>,
}

/// What became of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Set,
    WouldSet,
    Refused,
    Failed,
}

impl Granted {
    /// The class.
    pub fn class(&self) -> &AttributeClass {
        &self.class
    }

    /// The thread or process it is about.
    pub fn target(&self) -> i32 {
        self.target
    }

    /// Whether it may be read.
    pub fn may_get(&self) -> bool {
        self.rights & GET != 0
    }

    /// Whether it may be set.
    pub fn may_set(&self) -> bool {
        self.rights & SET != 0
    }

    /// Names the service that has the handle, for the log. `is_dry`: what it sets is not applied,
    /// the log says what would be. Only the first call counts.
    pub fn belongs_to(&self, name: &str, is_dry: bool) {
        let name = self.journal.name.set(name.to_owned());
        self.journal.is_dry.fetch_or(name.is_ok() && is_dry, Relaxed);
    }

    /// Writes down what became of a value, unless that was the last thing too.
    fn write_down(&self, outcome: Outcome, (asked, value): (i64, i64), why: &str) {
        let mut last = self.journal.last.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome == Outcome::Set {
            last.set = Some(value);
        }
        if last.line.replace((outcome, asked)) == Some((outcome, asked)) {
            return;
        }
        drop(last);
        let (who, what) = (self.journal.name.get().map_or("a service", String::as_str), self.class.name);
        let target = self.target;
        let line = match outcome {
            Outcome::Set => format!("{who} set {what} of {target} to {value}"),
            Outcome::WouldSet => format!("{who} would have set {what} of {target} to {value}"),
            Outcome::Refused => format!("{who} may not set {what} of {target} to {value}"),
            Outcome::Failed => format!("{who} could not set {what} of {target} to {value}"),
        };
        self.sets.changed(line + why);
    }

    /// Writes down what a handler has set that runs elsewhere than in the host.
    pub(crate) fn notice(&self) {
        let Some(value) = self.entry.and_then(|entry| self.sets.value(entry)) else { return };
        let is_known = self.journal.last.lock().unwrap_or_else(PoisonError::into_inner).set == Some(value);
        if !is_known {
            self.write_down(Outcome::Set, (value, value), "");
        }
    }

    /// Reads the attribute.
    ///
    /// # Errors
    /// `NotFound` when the target is gone, also when another has its number now; those of
    /// [`Manager::read`].
    pub fn read(&self) -> Result<i64> {
        self.check()?;
        self.manager.read(&self.class, self.target)
    }

    /// Asks for a value: what the guard says, and what came of applying it (nothing is applied
    /// where the guard refuses, or in a dry run). Each is a line of [`crate::Host::changes`].
    pub fn set(&self, asked: i64) -> (Verdict, Result<()>) {
        let verdict = if self.may_set() { self.guard.judge(asked) } else { Verdict::NoRight };
        let Some(value) = verdict.value() else {
            let why = match verdict {
                Verdict::NoRight => ": it may only read it".to_owned(),
                _ => format!(": the range is {} to {}", self.guard.min, self.guard.max),
            };
            self.write_down(Outcome::Refused, (asked, asked), &why);
            return (verdict, Ok(()));
        };
        let bounded = if value == asked { String::new() } else { format!(", the bound of the {asked} asked for") };
        if self.journal.is_dry.load(Relaxed) {
            self.write_down(Outcome::WouldSet, (asked, value), &bounded);
            return (verdict, self.check());
        }
        let applied = self.check().and_then(|()| self.manager.apply(&self.class, self.target, value));
        match &applied {
            Ok(()) => {
                self.entry.into_iter().for_each(|entry| self.sets.note(entry, value));
                self.write_down(Outcome::Set, (asked, value), &bounded);
            }
            Err(error) => self.write_down(Outcome::Failed, (asked, value), &format!(": {error}")),
        }
        (verdict, applied)
    }

    /// Whether the target is the one that the handle was granted for: as it was found within the
    /// last millisecond, else as it is now.
    fn check(&self) -> Result<()> {
        let now = sys::ticks();
        if attribute::still_holds(self.checked_at.load(Relaxed), now, self.tick_ns) {
            return Ok(());
        }
        self.check_now()?;
        self.checked_at.store(now, Relaxed);
        Ok(())
    }

    fn check_now(&self) -> Result<()> {
        let is_there = match &self.life {
            Some(life) => !pidfd::has_ended(life.as_fd()),
            None => self.began == 0 || region::began(self.target) == self.began,
        };
        if is_there {
            return Ok(());
        }
        let text = format!("{} of {}: that process has exited", self.class.name, self.target);
        Err(Error::new(Kind::NotFound, text))
    }

    /// Puts back what the service has set: to what another that remains has set, else to what it
    /// was when it was granted. Nothing that was not set is touched, and no target that is gone.
    /// Each is a line of [`crate::Host::put_back`].
    ///
    /// # Errors
    /// Those of [`Manager::apply`], with the attribute and the value.
    pub fn restore(&self) -> Result<()> {
        let Some((entry, set)) = self.entry.and_then(|entry| Some((entry, self.sets.value(entry)?))) else {
            return Ok(());
        };
        let (name, target) = (self.class.name, self.target);
        // A niceness that another process has set since stays.
        if self.class.id == attribute::CPU_NICE
            && let Ok(now) = self.read()
            && now != set
        {
            self.sets
                .done(entry, format!("{name} of {target} is {now}, no more the {set} that was set: left as it is"));
            return Ok(());
        }
        let (value, whose) = match self.sets.of_others(entry) {
            Some(value) => (value, "as another service has set it"),
            None => (self.original, "as it was"),
        };
        match self.check_now().and_then(|()| self.manager.apply(&self.class, target, value)) {
            Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::System(libc::ESRCH)) => {
                let text = format!("{name} of {target} could not be put back to {value}: {error}");
                Err(Error::new(error.kind(), text))
            }
            Err(_) => {
                self.sets.clear(entry);
                Ok(())
            }
            Ok(()) => {
                self.sets.done(entry, format!("{name} of {target} put back from {set} to {value}, {whose}"));
                Ok(())
            }
        }
    }

    /// As native services have it.
    pub(crate) fn native(&self, handle: u64) -> Grant {
        Grant {
            handle,
            class: self.class.id,
            rights: self.rights,
            target: self.target,
            clamp: u32::from(self.guard.clamp),
            min: self.guard.min,
            max: self.guard.max,
            began: self.began,
            entry: self.entry.map_or(u32::MAX, |entry| entry as u32),
        }
    }
}
