//! A service whose control group is made while the agent runs is watched without waiting for a
//! scan.

use crate::guard_common::{Dir, skipped, until};
use crate::running::{Agent, Group, start, well};

#[test]
fn a_process_in_a_new_group_is_watched_before_the_next_scan() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-groups");
    let program = well(&dir, "oa-groups");
    let config = "[export.prometheus]\nlisten = \"127.0.0.1:0\"\n\
                  [[policy]]\nname = \"new\"\nmatch = { unit = \"fresh*.service\" }\n";
    let agent = Agent::start(&dir, config);
    let of = |page: &str, begin: &str| -> f64 {
        let samples = page.lines().filter(|line| line.starts_with(begin));
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    let slice = format!("onew{}.slice", std::process::id());
    // A scan may come between by itself: they do once a second.
    for turn in 0..30 {
        let before = of(&agent.page("text/plain"), "orbit_agent_scan_seconds_count");
        let Some(group) = Group::make(&slice, &format!("fresh{turn}.service")) else { return };
        let _child = start(&program, "1000", Some(&group));
        let scans = until("the process to be watched", || {
            let page = agent.page("text/plain");
            (of(&page, "orbit_watched_processes") > 0.0).then(|| of(&page, "orbit_agent_scan_seconds_count"))
        });
        if scans == before {
            return;
        }
        drop((_child, group));
        until("it to be gone", || (of(&agent.page("text/plain"), "orbit_watched_processes") == 0.0).then_some(()));
    }
    panic!("each of 30 was seen after a scan only");
}
