//! Modules that crash, loop or leak are unloaded, reported and loaded again; what they missed is
//! counted; others continue.

mod common;
use common::LIMIT;
use orbit_rmk::{Context, Event, Filter, Kind, Module, ModuleOptions, Report};
use std::time::{Duration, Instant};

/// Goes wrong at its tenth event, in the way its settings name.
struct Sick {
    how: Vec<u8>,
    seen: u64,
}

impl Module for Sick {
    const NAME: &'static str = "sick";
    const PINS: &'static [&'static str] = &["P_PERI"];

    fn create(settings: &[u8]) -> Sick {
        Sick { how: settings.to_vec(), seen: 0 }
    }
    fn start(&mut self, context: &mut Context) {
        context.subscr_event("P_PERI", Kind::Period, Filter::everyone().interval(Duration::from_millis(2)));
    }
    fn event(&mut self, _context: &mut Context, _event: &Event) {
        self.seen += 1;
        if self.seen < 10 {
            return;
        }
        match &self.how[..] {
            b"crash" => std::process::abort(),
            b"loop" => loop {
                std::hint::spin_loop();
            },
            _ => {
                let mut leak = Vec::new();
                loop {
                    leak.push(vec![1u8; 1 << 20]);
                    std::hint::black_box(&leak);
                }
            }
        }
    }
}

/// Says how many events it saw, each hundredth.
struct Well {
    seen: u64,
}

impl Module for Well {
    const NAME: &'static str = "well";
    const PINS: &'static [&'static str] = &["P_PERI"];

    fn create(_settings: &[u8]) -> Well {
        Well { seen: 0 }
    }
    fn start(&mut self, context: &mut Context) {
        context.subscr_event("P_PERI", Kind::Period, Filter::everyone().interval(Duration::from_millis(2)));
    }
    fn event(&mut self, context: &mut Context, event: &Event) {
        self.seen += event.values[1];
        assert_eq!(event.values[0], self.seen, "no interval is forgotten");
        if self.seen.is_multiple_of(100) {
            context.report(format!("{}", self.seen));
        }
    }
}

fn wait_for(module: &orbit_rmk::Installed, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(report) = module.report(Duration::from_millis(100))
            && wanted(&report)
        {
            return report;
        }
    }
    panic!("no report within {LIMIT:?}: {what}; {:?}", module.status());
}

fn goes_wrong(how: &str, said: &[&str]) {
    let core = orbit_pins::core().expect("a core");
    let options = ModuleOptions { deadline: LIMIT, ..ModuleOptions::default() };
    let well = core.install::<Well>(options).expect("well");
    let options = ModuleOptions {
        settings: how.as_bytes().to_vec(),
        deadline: Duration::from_secs(3),
        pause: Duration::from_millis(100),
        ..ModuleOptions::default()
    };
    let sick = core.install::<Sick>(options).expect("sick");
    for _ in 0..2 {
        match wait_for(&sick, "a failure", |report| matches!(report, Report::Failed(_))) {
            Report::Failed(outcome) => assert!(said.iter().any(|word| outcome.contains(word)), "{outcome}"),
            _ => unreachable!("asked for a failure"),
        }
        wait_for(&sick, "a reload", |report| matches!(report, Report::Reloaded { .. }));
    }
    let status = sick.status();
    assert!(status.failures >= 2 && status.handled + status.missed >= 20, "{status:?}");
    assert!(status.missed > 0, "what came while it was down is counted: {status:?}");
    wait_for(&well, "the other module goes on", |report| matches!(report, Report::Said(_)));
    assert_eq!(well.status().failures, 0, "{:?}", well.status());
    sick.remove();
    let users: Vec<String> = core.pins().into_iter().find(|pin| pin.name == "P_PERI").expect("P_PERI").users;
    assert_eq!(users, ["well"], "the sick module's pins are released");
}

#[test]
fn a_module_that_crashes_is_loaded_again() {
    goes_wrong("crash", &["crashed: SIGABRT"]);
}

#[test]
fn a_module_that_loops_is_loaded_again() {
    goes_wrong("loop", &["not done at its deadline"]);
}

#[test]
fn a_module_that_leaks_is_loaded_again() {
    // Where the system has no limit on a process' memory but its address space, an allocation fails
    // and the module aborts.
    goes_wrong("leak", &["out of memory", "crashed: ", "not done at its deadline"]);
}

#[test]
fn a_module_that_fails_too_often_stays_unloaded() {
    let core = orbit_pins::core().expect("a core");
    let options = ModuleOptions { settings: b"crash".to_vec(), give_up: 2, ..ModuleOptions::default() };
    let sick = core.install::<Sick>(options).expect("sick");
    wait_for(&sick, "giving up", |report| *report == Report::GaveUp);
    common::until("it is down", || !sick.status().up && sick.status().pid == 0);
}

#[test]
fn a_missing_pin_is_named_with_the_module() {
    let core = orbit_pins::builder().without_pin("P_PERI").build().expect("a core");
    let error = core.install::<Well>(ModuleOptions::default()).map(|_| ()).expect_err("no P_PERI").to_string();
    assert!(error.contains("P_PERI") && error.contains("well"), "{error}");
}
