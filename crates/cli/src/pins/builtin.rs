//! The modules that the `orbit` command has within it, by name.

use orbit_rmk::{Context, Core, Event, Filter, Installed, Kind, Module, ModuleOptions, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// A module that can be named on the command line.
pub struct Builtin {
    pub name: &'static str,
    /// One sentence: what it tells.
    pub about: &'static str,
    pub install: fn(&Core) -> Result<Installed>,
}

/// All of them.
pub const ALL: [Builtin; 2] = [
    Builtin {
        name: Silence::NAME,
        about: "tells when the guarded programs make no system call for a second, and when they do again",
        install: |core| core.install::<Silence>(ModuleOptions::default()),
    },
    Builtin {
        name: Switches::NAME,
        about: "tells each second how often threads of the guarded programs, and those that gave way to them, stopped running",
        install: |core| core.install::<Switches>(ModuleOptions::default()),
    },
];

/// The one of this name; else a sentence that names those there are.
pub fn find(name: &str) -> std::result::Result<&'static Builtin, String> {
    ALL.iter().find(|builtin| builtin.name == name).ok_or_else(|| {
        let names = ALL.map(|builtin| builtin.name).join(", ");
        format!("there is no module \"{name}\"; there are {names}")
    })
}

/// Watches the guarded programs together. A program that waits for work is as silent as one that hangs.
struct Silence {
    calls: u64,
    quiet: bool,
}

impl Module for Silence {
    const NAME: &'static str = "silence";
    const PINS: &'static [&'static str] = &["P_SYSC"];
    const PERIOD: Option<Duration> = Some(Duration::from_secs(1));

    fn create(_settings: &[u8]) -> Silence {
        // The second in which it starts is not whole, so it does not count as silent.
        Silence { calls: 1, quiet: false }
    }

    fn start(&mut self, context: &mut Context) {
        context.subscr_event("P_SYSC", Kind::CallBegun, Filter::guarded());
    }

    fn event(&mut self, _context: &mut Context, _event: &Event) {
        self.calls += 1;
    }

    fn tick(&mut self, context: &mut Context) {
        let quiet = self.calls == 0;
        if quiet != self.quiet {
            context.report(if quiet { "silent for a second" } else { "speaks again" });
        }
        (self.quiet, self.calls) = (quiet, 0);
    }
}

/// Switches away from each thread since the last report, and nanoseconds that it ran before them. A switch passes if either
/// side is guarded, and the event does not say which: so threads that gave way to a guarded one are counted too, for those
/// switches only.
struct Switches {
    threads: BTreeMap<(u32, u32), (u64, u64)>,
}

/// Threads named in one report: the most switched.
const SHOWN: usize = 8;

impl Module for Switches {
    const NAME: &'static str = "switches";
    const PINS: &'static [&'static str] = &["P_SCHL"];
    const PERIOD: Option<Duration> = Some(Duration::from_secs(1));

    fn create(_settings: &[u8]) -> Switches {
        Switches { threads: BTreeMap::new() }
    }

    fn start(&mut self, context: &mut Context) {
        context.subscr_event("P_SCHL", Kind::ContextSwitch, Filter::guarded());
    }

    fn event(&mut self, _context: &mut Context, event: &Event) {
        let (count, ran) = self.threads.entry((event.pid, event.tid)).or_default();
        *count += 1;
        *ran += event.values[3];
    }

    fn tick(&mut self, context: &mut Context) {
        let mut threads: Vec<_> =
            std::mem::take(&mut self.threads).into_iter().filter(|((pid, _), _)| *pid != 0).collect();
        if threads.is_empty() {
            return;
        }
        threads.sort_by_key(|(thread, (count, _))| (std::cmp::Reverse(*count), *thread));
        let more = threads.len().saturating_sub(SHOWN);
        let mut said: Vec<_> = threads
            .iter()
            .take(SHOWN)
            .map(|((pid, tid), (count, ran))| format!("thread {tid} of {pid}: {count} switches, ran {} us", ran / 1000))
            .collect();
        if more > 0 {
            said.push(format!("{more} threads more"));
        }
        context.report(said.join("; "));
    }
}
