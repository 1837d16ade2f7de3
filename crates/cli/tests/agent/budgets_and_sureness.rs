//! What is not sure, or beyond a budget, is counted and announced, and nothing is done.

use crate::guard_common::{Dir, skipped, until};
use crate::running::{Agent, program, start};

#[test]
fn a_hang_that_is_not_certain_is_reported_and_spared() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-sure");
    let bin = program(&dir, "oa-sure");
    let config = "[export.prometheus]\nlisten = \"127.0.0.1:0\"\n[[policy]]\nname = \"p\"\n\
                  match = { command = \"oa-sure\" }\nwatch = { limit = \"1s\", on_hang = \"signal:KILL\" }\n";
    let agent = Agent::start(&dir, config);
    let mut child = start(&bin, "hold", None);
    until("a report", || {
        assert_eq!(child.0.try_wait().expect("a child"), None, "{}", agent.log());
        (agent.figure("orbit_suppressed_total{reason=\"not_sure\"}") > 0.0).then_some(())
    });
    assert_eq!(agent.figure("orbit_actions_total"), 0.0);
    assert_eq!(child.0.try_wait().expect("a child"), None);
    until("a sentence", || agent.log().contains("no signal: the report is ").then_some(()));
}

#[test]
fn beyond_the_budget_reports_and_actions_are_counted_and_announced_once() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-budget");
    let bin = program(&dir, "oa-budget");
    let config = "[limits]\nreports_per_hour = 1\nactions_per_hour = 1\n[export.prometheus]\nlisten = \"127.0.0.1:0\"\n\
                  [[policy]]\nname = \"p\"\nmatch = { command = \"oa-budget\" }\nwatch = { on_hang = \"signal:CONT\" }\n";
    let agent = Agent::start(&dir, config);
    let children: Vec<_> = (0..3).map(|_| start(&bin, "ring2", None)).collect();
    until("three hangs", || (agent.figure("orbit_hangs_total{") >= 3.0).then_some(()));
    until("the figures", || (agent.figure("orbit_suppressed_total{reason=\"service_budget\"}") >= 4.0).then_some(()));
    assert_eq!(agent.figure("orbit_actions_total{did=\"signal\"}"), 1.0);
    assert!(agent.reports().len() == 1 && agent.figure("orbit_hangs_active{") >= 3.0);
    until("two sentences", || (agent.log().matches("further ones are counted only").count() == 2).then_some(()));
    drop(children);
    until("their end", || (agent.figure("orbit_hangs_active{") == 0.0).then_some(()));
}
