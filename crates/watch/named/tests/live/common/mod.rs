//! Programs to watch, and a detection with sections by name for them.
#![allow(dead_code, reason = "each test uses some of it")]

#[path = "../../../../ahd/tests/live/common/mod.rs"]
mod programs;

use orbit_ahd::{Event, Hang};
use orbit_modules::hangs::{Detection, Settings};
pub use programs::{Dir, PATIENCE, Program, functions, have};
use std::time::{Duration, Instant};

/// A detection with all it has reported.
pub struct Watcher {
    pub detection: Detection,
    pub events: Vec<Event>,
}

impl Watcher {
    pub fn of(pid: i32, settings: Settings) -> Watcher {
        let mut detection = Detection::new(&settings);
        detection.add(pid).expect("the program");
        Watcher { detection, events: Vec::new() }
    }

    /// One scan, when it is due.
    pub fn scan(&mut self) {
        std::thread::sleep(self.detection.pause());
        let new = self.detection.tick();
        for e in &new {
            match e {
                Event::Hang(h) => println!("hang: {} ({})", h.why, h.sure),
                other => println!("{other:?}"),
            }
        }
        self.events.extend(new);
    }

    /// Scans for so long.
    pub fn run(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.scan();
        }
    }

    /// Scans until the condition holds.
    pub fn until(&mut self, what: &str, is: impl Fn(&[Event]) -> bool) {
        let start = Instant::now();
        while !is(&self.events) {
            assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
            self.scan();
        }
    }

    pub fn hangs(&self) -> Vec<&Hang> {
        self.events.iter().filter_map(|e| if let Event::Hang(h) = e { Some(&**h) } else { None }).collect()
    }

    /// The first hang, waited for.
    pub fn hang(&mut self) -> &Hang {
        self.until("a hang", |all| all.iter().any(|e| matches!(e, Event::Hang(_))));
        self.hangs()[0]
    }

    pub fn quiet(&self) {
        assert!(self.hangs().is_empty(), "false alarm: {:#?}", self.hangs());
    }
}
