//! Hang detection whole: the rules of `orbit-ahd` with sections by name beside them.
//!
//! Owns: [`Detection`], which a command runs in its own process, and [`Detector`], the module of
//! the same that a core runs in one of its own.

mod module;

pub use module::{Detector, options};

use orbit_ahd::{Config, Event, Watcher};
use orbit_named::{Named, Sections};
use std::io;
use std::time::Duration;

/// What is to be detected. [`Settings::default`] has no sections by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The rules' own settings.
    pub config: Config,
    /// Sections by name: functions of programs that were not changed for it.
    pub sections: Vec<Named>,
    /// What probes of all of them together may cost a process, in percent of the CPU time it uses;
    /// 0: no bound.
    pub section_cost: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { config: Config::default(), sections: Vec::new(), section_cost: 2.0 }
    }
}

/// Watches processes for hangs. Use from one thread at a time; may be moved between threads.
#[derive(Debug)]
pub struct Detection {
    watcher: Watcher,
    sections: Sections,
    /// What is left to report of processes that were let go.
    late: Vec<Event>,
}

impl Detection {
    /// A detection of nothing yet.
    pub fn new(settings: &Settings) -> Detection {
        let sections = Sections::new(settings.sections.clone(), settings.section_cost);
        Detection { watcher: Watcher::new(settings.config.clone()), sections, late: Vec::new() }
    }

    /// Watches a process from now on; nothing happens if it is watched already.
    ///
    /// # Errors
    /// `ESRCH` or `ENOENT` if there is none, `EACCES` if it may not be seen.
    pub fn add(&mut self, pid: i32) -> io::Result<()> {
        self.watcher.add(pid)
    }

    /// Watches a process no more; what its sections cost is among the next events. `false`: it was
    /// not watched, or has ended, which the next scan reports.
    pub fn remove(&mut self, pid: i32) -> bool {
        let was_there = self.watcher.remove(pid);
        if was_there {
            self.late.extend(self.sections.forget(pid));
        }
        was_there
    }

    /// The watched processes, sorted.
    pub fn pids(&self) -> Vec<i32> {
        self.watcher.pids()
    }

    /// Time between two scans of a program that costs little to scan.
    pub fn period(&self) -> Duration {
        self.watcher.period()
    }

    /// Time to wait until the next [`Detection::scan`].
    pub fn pause(&self) -> Duration {
        self.watcher.pause()
    }

    /// Time to wait until the next scan, if that is to be before its turn.
    pub fn soon(&self) -> Option<Duration> {
        self.watcher.soon()
    }

    /// Scans once and hands over what happened, each event as soon as it is known; see
    /// [`Watcher::scan`].
    pub fn scan(&mut self, hand: &mut dyn FnMut(Event)) {
        self.late.drain(..).for_each(&mut *hand);
        let Detection { watcher, sections, .. } = self;
        watcher.scan(&mut |event| {
            if let Event::Left { pid } = event {
                sections.forget(pid).into_iter().for_each(&mut *hand);
            }
            hand(event);
        });
        for pid in watcher.take_replaced() {
            sections.forget(pid).into_iter().for_each(&mut *hand);
        }
        sections.scan(watcher, hand);
    }

    /// Scans once and answers what happened.
    pub fn tick(&mut self) -> Vec<Event> {
        let mut all = Vec::new();
        self.scan(&mut |event| all.push(event));
        all
    }

    /// What was found outside of a scan.
    pub fn take_events(&mut self) -> Vec<Event> {
        let mut all = std::mem::take(&mut self.late);
        all.extend(self.watcher.take_events());
        all
    }

    /// What is left to report once nothing will be watched any more.
    pub fn finish(&mut self) -> Vec<Event> {
        let mut all = self.take_events();
        all.extend(self.sections.finish(&self.watcher.pids()));
        all
    }

    /// Waits until probes are gone, at most so long; whether they are.
    pub fn settle(&self, longest: Duration) -> bool {
        self.sections.settle(longest)
    }
}
