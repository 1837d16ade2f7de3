#![doc = include_str!("switches.md")]

use crate::{Context, Event, Filter, Kind, Module};
use std::collections::BTreeMap;
use std::time::Duration;

/// Switches away from each thread since the last report, and nanoseconds that it ran before them. A
/// switch passes if either side is guarded, and the event does not say which: so threads that gave
/// way to a guarded one are counted too, for those switches only.
pub struct Switches {
    threads: BTreeMap<(u32, u32), (u64, u64)>,
}

/// Threads named in one report: the most switched.
const MAX_SHOWN_THREADS: usize = 8;

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
        let more = threads.len().saturating_sub(MAX_SHOWN_THREADS);
        let mut said: Vec<_> = threads
            .iter()
            .take(MAX_SHOWN_THREADS)
            .map(|((pid, tid), (count, ran))| format!("thread {tid} of {pid}: {count} switches, ran {} us", ran / 1000))
            .collect();
        if more > 0 {
            said.push(format!("{more} threads more"));
        }
        context.report(said.join("; "));
    }
}
