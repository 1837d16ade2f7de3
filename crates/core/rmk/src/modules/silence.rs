#![doc = include_str!("silence.md")]

use crate::{Context, Event, Filter, Kind, Module};
use std::time::Duration;

/// Watches the guarded programs together.
pub struct Silence {
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
