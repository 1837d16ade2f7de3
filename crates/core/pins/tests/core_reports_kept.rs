//! A report that was handed over outlives its module's failure in the same call, and whoever reads
//! too late is notified how many were dropped.

mod common;
use common::LIMIT;
use orbit_rmk::{Context, Core, Event, Filter, Kind, Module, ModuleOptions, Report};
use std::time::{Duration, Instant};

/// At its first event reports as often as its settings say, hands that over, and fails if they say
/// so.
struct Talks {
    reports: u64,
    fails: bool,
}

impl Module for Talks {
    const NAME: &'static str = "talks";
    const PINS: &'static [&'static str] = &["P_PERI"];

    fn create(settings: &[u8]) -> Talks {
        let text = String::from_utf8_lossy(settings);
        let (reports, fails) = text.split_once(' ').expect("two words");
        Talks { reports: reports.parse().expect("a number"), fails: fails == "fails" }
    }
    fn start(&mut self, context: &mut Context) {
        context.subscr_event("P_PERI", Kind::Period, Filter::everyone().interval(Duration::from_millis(2)));
    }
    fn event(&mut self, context: &mut Context, _event: &Event) {
        for n in 0..std::mem::take(&mut self.reports) {
            context.report(format!("report {n}"));
        }
        context.hand_over();
        if self.fails {
            loop {
                std::hint::spin_loop();
            }
        }
    }
}

fn installed(core: &Core, settings: &str, deadline: Duration) -> orbit_rmk::Installed {
    let options = ModuleOptions { settings: settings.into(), deadline, give_up: 1, ..ModuleOptions::default() };
    core.install::<Talks>(options).expect("the module")
}

#[test]
fn what_was_handed_over_is_not_lost_by_a_deadline() {
    let core = orbit_pins::core().expect("a core");
    // Long enough to hand its reports over on a loaded machine.
    let module = installed(&core, "3 fails", Duration::from_secs(5));
    let mut all = Vec::new();
    let start = Instant::now();
    while !all.contains(&Report::GaveUp) {
        assert!(start.elapsed() < LIMIT, "{all:?}");
        all.extend(module.report(Duration::from_millis(100)));
    }
    let said: Vec<Report> = (0..3).map(|n| Report::Said(format!("report {n}"))).collect();
    assert_eq!(all[..3], said, "in order, before the failure: {all:?}");
    assert!(matches!(&all[3], Report::Failed(how) if how.contains("deadline")), "{all:?}");
}

#[test]
fn dropped_reports_are_counted_where_they_were() {
    const MADE: u64 = 3000;
    const KEPT: u64 = 1024;
    let core = orbit_pins::core().expect("a core");
    let module = installed(&core, &format!("{MADE} lives"), LIMIT);
    common::until("all to be made", || module.status().unread == MADE - KEPT);
    assert_eq!(module.report(Duration::ZERO), Some(Report::Dropped(MADE - KEPT)));
    for n in MADE - KEPT..MADE {
        assert_eq!(module.report(Duration::ZERO), Some(Report::Said(format!("report {n}"))));
    }
    assert_eq!(module.report(Duration::ZERO), None);
}
