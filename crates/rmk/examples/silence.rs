//! An example of a module: it tells when a guarded program makes no system call for a second. See silence.md.
//!
//! `cargo run -p orbit-rmk --example silence -- PID` (as root).
use orbit_rmk::{Context, Core, Event, Filter, Kind, Module, ModuleOptions};
use std::{env, error::Error, time::Duration};

/// Watches the guarded programs together.
struct Silence {
    calls: u64,
    quiet: bool,
}

impl Module for Silence {
    const NAME: &'static str = "silence";
    const PINS: &'static [&'static str] = &["P_SYSC"];
    const PERIOD: Option<Duration> = Some(Duration::from_secs(1));

    fn create(_settings: &[u8]) -> Silence {
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

fn main() -> Result<(), Box<dyn Error>> {
    let pid = env::args().nth(1).ok_or("usage: silence PID")?.parse()?;
    orbit::init()?;
    let module = Core::new()?.install::<Silence>(ModuleOptions::default())?;
    module.guard(pid)?;
    loop {
        if let Some(report) = module.report(Duration::from_secs(3600)) {
            println!("{report:?}");
        }
    }
}
