//! A pin is loaded for its first user and unloaded with the last; what is missing is named, with
//! the module and the way out.

mod common;
use common::kernel_programs_or_skip;
use orbit_rmk::{Command, Core, Filter, Kind, PinKind, Probe};

fn loaded(core: &Core) -> Vec<&'static str> {
    core.pins().into_iter().filter(|pin| pin.loaded).map(|pin| pin.name).collect()
}

#[test]
fn first_use_loads_and_last_release_unloads() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    assert_eq!(core.pins().len(), 12, "the twelve pins of Table 3");
    assert!(loaded(&core).is_empty() && core.kernel_programs().is_empty());
    let (first, second) = (core.client("first"), core.client("second"));
    first.use_pin("P_SCHL").expect("P_SCHL");
    assert_eq!((loaded(&core), core.kernel_programs()), (vec!["P_SCHL"], vec!["sched_switch"]));
    second.use_pin("P_SCHL").expect("P_SCHL");
    second.subscr_event("P_SCHL", Kind::Ended, Filter::everyone()).expect("a subscription");
    assert_eq!(core.kernel_programs(), ["process_exit", "sched_switch"]);
    first.release_pin("P_SCHL").expect("released");
    assert_eq!(loaded(&core), ["P_SCHL"], "the second still uses it");
    drop(second);
    assert!(loaded(&core).is_empty() && core.kernel_programs().is_empty(), "nothing is left in the kernel");
    first.use_pin("P_SCHL").expect("loaded again");
    assert_eq!(loaded(&core), ["P_SCHL"]);
}

#[test]
fn a_pin_that_is_not_used_does_nothing_for_a_module() {
    let core = orbit_pins::core().expect("a core");
    let module = core.client("eager");
    for error in [
        module.issue_cmd("P_PERI", &Command::HeartbeatStop).expect_err("not used").to_string(),
        module.subscr_event("P_PERI", Kind::Period, Filter::everyone()).expect_err("not used").to_string(),
        module.release_pin("P_PERI").expect_err("not used").to_string(),
    ] {
        assert!(error.contains("P_PERI") && error.contains("eager") && error.contains("use_pin"), "{error}");
    }
    module.use_pin("P_PERI").expect("P_PERI");
    assert!(module.issue_cmd("P_PERI", &Command::CpuStates).is_err(), "another pin's command");
    let error = module.subscr_event("P_PERI", Kind::Ended, Filter::everyone()).expect_err("not its event").to_string();
    assert!(error.contains("Ended") && error.contains("Period"), "{error}");
    assert!(module.unsubscr_event(4711).is_err());
}

#[test]
fn a_missing_pin_is_named_with_the_module_and_the_way_out() {
    let core = orbit_pins::core().expect("a core");
    let module = core.client("hopeful");
    let error = module.use_pin("P_QUANTUM").expect_err("no such pin").to_string();
    assert!(error.contains("P_QUANTUM") && error.contains("hopeful") && error.contains("P_SCHL"), "{error}");
    core.register_pin(PinKind {
        name: "P_LASER",
        about: "a laser",
        facility: "",
        operations: &[],
        events: &[],
        probe: &|_| Probe::Missing("no laser: install one".into()),
        load: &|_| unreachable!("a missing pin is not loaded"),
    })
    .expect("registered");
    let error = module.use_pin("P_LASER").expect_err("no laser").to_string();
    assert!(error.contains("P_LASER") && error.contains("hopeful") && error.contains("install one"), "{error}");
}
