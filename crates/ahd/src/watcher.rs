//! The watcher that the guard and the module run: one of the two detectors, with sections beside it.

use crate::config::Method;
use crate::event::Event;
use crate::judged::Judged;
use crate::limits::Limits;
use crate::{Ahd, Config};
use std::io;
use std::time::Duration;

/// A scan may be so much before its turn, so that a caller with a period of its own misses none.
const EARLY: Duration = Duration::from_millis(10);

/// Watches processes for hangs. Use from one thread at a time; may be moved between threads.
#[derive(Debug)]
pub struct Watcher {
    /// Which processes are watched, sections; with [`Method::Examine`] all else too.
    ahd: Ahd,
    judged: Option<Judged>,
}

impl Watcher {
    /// A watcher of nothing yet.
    pub fn new(config: Config) -> Watcher {
        let judged = (config.method == Method::Judge).then(|| {
            let limits = Limits::with_limit(config.limit.as_secs_f64());
            Judged::new(limits, config.record.as_deref())
        });
        let examines = judged.is_none();
        let (busy, blocked) = (config.busy && examines, config.blocked && examines);
        Watcher { ahd: Ahd::new(Config { busy, blocked, ..config }), judged }
    }

    /// Watches a process from now on; nothing happens if it is watched already.
    ///
    /// # Errors
    /// `ESRCH` or `ENOENT` if there is none, `EACCES` if it may not be looked into.
    pub fn add(&mut self, pid: i32) -> io::Result<()> {
        self.ahd.add(pid)
    }

    /// Watches a process no more. `false`: it was not watched, or has ended, which the next scan reports.
    pub fn remove(&mut self, pid: i32) -> bool {
        if let Some(judged) = &mut self.judged {
            judged.forget(pid);
        }
        self.ahd.remove(pid)
    }

    /// The watched processes, sorted.
    pub fn pids(&self) -> Vec<i32> {
        self.ahd.pids()
    }

    /// Time between two scans as asked for.
    pub fn period(&self) -> Duration {
        self.ahd.config.period
    }

    /// Time to wait until the next [`Watcher::look`].
    pub fn pause(&self) -> Duration {
        let judged = self.judged.as_ref().map_or(Duration::MAX, Judged::pause);
        self.ahd.pause().min(judged)
    }

    /// Time to wait until the next scan, if that is to be before its turn.
    pub fn soon(&self) -> Option<Duration> {
        let judged = self.judged.as_ref().map(Judged::pause).filter(|pause| *pause < self.period() / 2);
        self.ahd.soon().or(judged)
    }

    /// Scans once and hands over what happened, each event as soon as it is known.
    pub fn look(&mut self, hand: &mut dyn FnMut(Event)) {
        if self.judged.is_none() || self.ahd.pause() <= EARLY {
            self.ahd.look(hand);
        }
        if let Some(judged) = &mut self.judged
            && judged.pause() <= EARLY
        {
            judged.turn(&self.ahd.pids(), hand);
        }
    }

    /// Scans once and answers what happened; see [`Watcher::look`].
    pub fn tick(&mut self) -> Vec<Event> {
        let mut all = Vec::new();
        self.look(&mut |event| all.push(event));
        all
    }

    /// What was found outside of a scan.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.ahd.events)
    }

    /// What is left to report once nothing will be watched any more.
    pub fn finish(&mut self) -> Vec<Event> {
        self.ahd.finish()
    }

    /// Waits until probes are gone, at most so long; whether they are.
    pub fn settle(&mut self, longest: Duration) -> bool {
        self.ahd.settle(longest)
    }
}
