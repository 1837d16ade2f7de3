//! A module does from its own process all that section 3.1 names: it takes up a pin and gives it
//! back, has it do something, subscribes and ends that.

mod common;
use common::LIMIT;
use orbit_rmk::{Command, Context, Event, Filter, Kind, Measure, Module, ModuleOptions, Probe, Reply, Report, Target};
use std::time::{Duration, Instant};

/// Sees a fast subscription, uses a second pin, then changes over to a slow subscription and gives
/// the pin back.
struct Changes {
    pid: u32,
    fast: u64,
    slow: u64,
    seen: u32,
    late: u32,
}

impl Module for Changes {
    const NAME: &'static str = "changes";
    const PINS: &'static [&'static str] = &["P_PERI"];

    fn create(settings: &[u8]) -> Changes {
        let pid = String::from_utf8_lossy(settings).parse().expect("a process");
        Changes { pid, fast: 0, slow: 0, seen: 0, late: 0 }
    }
    fn start(&mut self, context: &mut Context) {
        let often = Filter::everyone().interval(Duration::from_millis(2));
        self.fast = context.subscr_event("P_PERI", Kind::Period, often);
    }
    fn event(&mut self, context: &mut Context, event: &Event) {
        if event.subscription == self.fast {
            self.seen += 1;
            if self.seen == 5 {
                context.use_pin("P_PMC");
                let target = Target::Thread { tid: self.pid };
                context.issue_cmd("P_PMC", Command::CounterOpen { target, measure: Measure::CpuTime, reach: 0 });
            }
            // Those that were on their way have come by the fifth of the slow ones.
            self.late += u32::from(self.slow > 5);
        } else {
            self.slow += 1;
            if self.slow == 15 {
                context.report(format!("late: {}", self.late));
            }
        }
    }
    fn guarded(&mut self, context: &mut Context, pids: &[u32]) {
        if !pids.is_empty() {
            context.release_pin("P_PMC");
        }
    }
    fn reply(&mut self, context: &mut Context, _ticket: u64, reply: &Result<Reply, String>) {
        context.report(match reply {
            Ok(Reply::Counter { .. }) => "counts".to_owned(),
            other => format!("{other:?}"),
        });
        context.unsubscr_event(self.fast);
        context.subscr_event("P_PERI", Kind::Period, Filter::everyone().interval(Duration::from_millis(20)));
    }
}

#[test]
fn pins_commands_and_subscriptions() {
    let core = orbit_pins::core().expect("a core");
    let pin = |name: &str| core.pins().into_iter().find(|pin| pin.name == name).expect("a pin");
    if let Probe::Missing(why) = pin("P_PMC").probe {
        println!("SKIP: needs counters: {why}");
        return;
    }
    let settings = std::process::id().to_string().into_bytes();
    let options = ModuleOptions { settings, deadline: LIMIT, ..ModuleOptions::default() };
    let module = core.install::<Changes>(options).expect("a module");
    let (start, mut said) = (Instant::now(), Vec::new());
    while said.len() < 2 {
        assert!(start.elapsed() < LIMIT, "{said:?}, {:?}", module.status());
        match module.report(Duration::from_millis(100)) {
            Some(Report::Said(text)) => said.push(text),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    assert_eq!(said, ["counts", "late: 0"]);
    let used = pin("P_PMC");
    assert!(used.loaded && used.users == ["changes"], "{used:?}");
    // It gives it back once it has something to guard.
    core.guard(std::process::id()).expect("this process");
    while pin("P_PMC").loaded {
        assert!(start.elapsed() < LIMIT, "a pin that was given back stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(pin("P_PERI").users, ["changes"]);
}
