//! P_PERI raises an event each interval, one timer a subscription, and keeps a heartbeat on every
//! CPU.

mod common;
use common::{kernel_programs_or_skip, until};
use orbit_rmk::{Command, Filter, Kind, Reply};
use std::time::Duration;

#[test]
fn intervals_are_counted_also_when_the_reader_is_late() {
    let core = orbit_pins::core().expect("a core");
    let module = core.client("clock");
    module.use_pin("P_PERI").expect("P_PERI");
    let fast = module
        .subscr_event("P_PERI", Kind::Period, Filter::everyone().interval(Duration::from_millis(2)))
        .expect("fast");
    let slow = module
        .subscr_event("P_PERI", Kind::Period, Filter::everyone().interval(Duration::from_millis(20)))
        .expect("slow");
    let (mut events, mut counted, mut total, mut slow_seen) = (Vec::new(), 0, 0, 0);
    until("twenty fast intervals and one slow", || {
        events.clear();
        module.wait(100, Duration::from_millis(50), &mut events);
        for event in &events {
            if event.subscription == fast {
                counted += event.values[1];
                total = event.values[0];
            } else {
                assert_eq!(event.subscription, slow);
                slow_seen += 1;
            }
        }
        total >= 20 && slow_seen > 0
    });
    assert_eq!(total, counted, "no interval is forgotten");
}

#[test]
fn an_impossible_interval_is_refused_with_its_limits() {
    let core = orbit_pins::core().expect("a core");
    let module = core.client("clock");
    module.use_pin("P_PERI").expect("P_PERI");
    let error = module
        .subscr_event("P_PERI", Kind::Period, Filter::everyone().interval(Duration::ZERO))
        .expect_err("0")
        .to_string();
    assert!(error.contains("1 us"), "{error}");
    let error = module.issue_cmd("P_PERI", &Command::HeartbeatStart { interval_ns: 1 }).expect_err("1 ns").to_string();
    assert!(error.contains("1 ms"), "{error}");
}

#[test]
fn the_heartbeat_makes_every_cpu_switch() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("heart");
    module.use_pin("P_PERI").expect("P_PERI");
    module.use_pin("P_SCHL").expect("P_SCHL");
    let cpus = || match module.issue_cmd("P_SCHL", &Command::CpuStates).expect("CpuStates") {
        Reply::Cpus { cpus } => cpus,
        other => panic!("{other:?}"),
    };
    module.issue_cmd("P_PERI", &Command::HeartbeatStart { interval_ns: 5_000_000 }).expect("heartbeat");
    let before = cpus();
    until("twenty more switches on every CPU", || {
        cpus().iter().zip(&before).all(|(now, then)| now.switches >= then.switches + 20)
    });
    module.issue_cmd("P_PERI", &Command::HeartbeatStop).expect("stop");
}
