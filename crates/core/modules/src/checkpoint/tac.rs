//! The module `tac`: transparent application checkpoint (the paper's section 6.1).
//!
//! Owns: when a checkpoint of the guarded programs is taken: at every event of P_PERI, one that is
//! under way excepted. What a checkpoint is belongs to the pin P_MEM. Knows nothing after it was
//! loaded again; the checkpoints stay meanwhile.

use orbit_rmk::{Command, Context, Event, Filter, Kind, Module, Reply};
use std::collections::BTreeMap;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(1);
const GENERATIONS: u32 = 4;

/// See the module's head. Its settings are the time between two checkpoints in ms, as decimal
/// digits; empty: 1 s.
pub struct Tac {
    interval: Duration,
    programs: BTreeMap<u32, Figures>,
    /// Commands that have not been answered, and for which program.
    asked: BTreeMap<u64, u32>,
}

#[derive(Default)]
struct Figures {
    taken: u64,
    put_off: u64,
    pages: u64,
    longest_ns: u64,
    /// The latest failure; said once.
    failure: String,
}

impl Tac {
    /// Settings for a checkpoint in so many milliseconds.
    pub fn settings(interval: Duration) -> Vec<u8> {
        interval.as_millis().to_string().into_bytes()
    }

    fn left(&mut self, context: &mut Context, pid: u32) {
        let Some(figures) = self.programs.remove(&pid) else { return };
        let Figures { taken, put_off, pages, longest_ns, .. } = figures;
        let longest = longest_ns as f64 / 1e6;
        context.report(format!(
            "process {pid}: {taken} checkpoints, {put_off} put off, {pages} pages, longest pause {longest:.2} ms"
        ));
    }
}

impl Module for Tac {
    const NAME: &'static str = "tac";
    const PINS: &'static [&'static str] = &["P_PERI", "P_MEM"];

    fn create(settings: &[u8]) -> Tac {
        let text = std::str::from_utf8(settings).unwrap_or_default();
        let interval = text.parse().map_or(INTERVAL, Duration::from_millis);
        Tac { interval, programs: BTreeMap::new(), asked: BTreeMap::new() }
    }

    fn start(&mut self, context: &mut Context) {
        context.subscr_event("P_PERI", Kind::Period, Filter::everyone().interval(self.interval));
    }

    fn event(&mut self, context: &mut Context, _event: &Event) {
        for &pid in self.programs.keys() {
            if self.asked.values().any(|other| *other == pid) {
                continue;
            }
            let interval_ns = self.interval.as_nanos() as u64;
            let take = Command::CheckpointTake { pid, generations: GENERATIONS, interval_ns };
            self.asked.insert(context.issue_cmd("P_MEM", take), pid);
        }
    }

    fn reply(&mut self, context: &mut Context, ticket: u64, reply: &Result<Reply, String>) {
        let Some(pid) = self.asked.remove(&ticket) else { return };
        let Some(figures) = self.programs.get_mut(&pid) else { return };
        match reply {
            Ok(Reply::Checkpoint { pages, stopped_ns, .. }) => {
                if figures.taken == 0 {
                    let ms = *stopped_ns as f64 / 1e6;
                    context
                        .report(format!("process {pid}: first checkpoint, {pages} pages, stood still for {ms:.2} ms"));
                }
                figures.taken += 1;
                figures.pages += pages;
                figures.longest_ns = figures.longest_ns.max(*stopped_ns);
            }
            Ok(_) => {}
            Err(why) => {
                figures.put_off += 1;
                if *why != figures.failure {
                    context.report(why.clone());
                    figures.failure.clone_from(why);
                }
            }
        }
    }

    fn guarded(&mut self, context: &mut Context, pids: &[u32]) {
        let gone: Vec<u32> = self.programs.keys().copied().filter(|pid| !pids.contains(pid)).collect();
        for pid in gone {
            self.left(context, pid);
        }
        for &pid in pids {
            self.programs.entry(pid).or_default();
        }
    }
}
