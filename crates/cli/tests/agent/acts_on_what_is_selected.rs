//! Among healthy programs and some that no policy names, the service that hangs is restarted: its
//! main process is killed, and nothing else gets a signal.

use crate::guard_common::{Dir, skipped, until};
use crate::running::{Agent, Group, program, start, well};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

#[test]
fn the_main_process_of_the_unit_that_hangs_is_killed_and_no_other() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-acts");
    let slice = format!("otest{}.slice", std::process::id());
    let Some(group) = Group::make(&slice, "victim@1.service") else { return };
    let Some(other_group) = Group::make(&slice, "fine.service") else { return };
    let bin = program(&dir, "oa-acts");
    let config = "[export.prometheus]\nlisten = \"127.0.0.1:0\"\n\
                  [[exclude]]\nunit = \"no-such.service\"\n\
                  [[policy]]\nname = \"units\"\nmatch = { unit = \"victim@*.service\" }\n\
                  watch = { limit = \"1s\", on_hang = \"restart\" }\n\
                  [[policy]]\nname = \"fine\"\nmatch = { unit = \"fine.service\", command = \"oa-acts\" }\n\
                  watch = { on_hang = \"restart\" }\n";
    let agent = Agent::start(&dir, config);
    // Healthy, and one that hangs but that nobody asked to be watched.
    let mut healthy = start(&well(&dir, "oa-acts"), "1000", Some(&other_group));
    let mut unselected = start(&bin, "ring2", None);
    agent.watches("fine", 1);
    let mut victim = start(&bin, "ring2", Some(&group));
    let pid = victim.0.id();
    let status = until("the end of the victim", || victim.0.try_wait().expect("a child"));
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    until("the figure", || (agent.figure("orbit_actions_total{did=\"restart\"}") == 1.0).then_some(()));
    let page = agent.page("text/plain");
    let certain =
        page.lines().filter(|line| line.starts_with("orbit_hangs_total{") && line.contains("sure=\"certain\""));
    assert_eq!(certain.filter(|line| line.ends_with(" 1")).count(), 1, "{page}");
    assert!(agent.page("text/plain").contains("unit=\"victim@.service\""), "an instance has its template's name");
    assert_eq!(unselected.0.try_wait().expect("a child"), None, "nobody asked for it");
    assert_eq!(healthy.0.try_wait().expect("a child"), None);
    let of_victim = |path: &std::path::PathBuf| {
        let report: Value = serde_json::from_slice(&std::fs::read(path).expect("a report")).expect("JSON");
        (report["hang"]["pid"] == pid && report["hang"]["sure"] == "certain").then_some(report)
    };
    let reports = agent.reports();
    assert_eq!(std::fs::metadata(&reports[0]).expect("a file").permissions().mode() & 0o777, 0o600);
    let report = reports.iter().find_map(of_victim).expect("its report");
    assert_eq!(report["identity"]["unit"], "victim@1.service");
    assert_eq!(report["hang"]["cycle"].as_array().map(Vec::len), Some(2));
    until("the service to be gone", || {
        agent.status()["hangs"].as_array()?.iter().all(|h| h["pid"] != pid).then_some(())
    });
    let run = agent.folder.join("run");
    assert!(agent.end().success());
    assert_eq!(std::fs::read_dir(run).expect("a folder").count(), 0, "an agent that ended leaves no state");
}

#[test]
fn a_group_made_later_is_seen_and_a_shared_main_process_is_not_guessed() {
    if skipped() {
        return;
    }
    let dir = Dir::new("agent-main");
    let slice = format!("omain{}.slice", std::process::id());
    let Some(group) = Group::make(&slice, "two.service") else { return };
    let bin = program(&dir, "oa-main");
    let config = "[export.prometheus]\nlisten = \"127.0.0.1:0\"\n[[policy]]\nname = \"two\"\n\
                  match = { unit = \"two.service\" }\nwatch = { on_hang = \"restart\" }\n";
    let agent = Agent::start(&dir, config);
    // Both were started from outside the unit: either may be its main process.
    let mut healthy = start(&well(&dir, "oa-main"), "1000", Some(&group));
    agent.watches("two", 1);
    let mut hung = start(&bin, "ring2", Some(&group));
    until("a suppressed action", || {
        (agent.figure("orbit_suppressed_total{reason=\"main_unknown\"}") >= 1.0).then_some(())
    });
    let hang = until("a sentence", || {
        let status = agent.status();
        let is_it =
            |hang: &&Value| hang["did"].as_str().is_some_and(|did| did.contains("which process is the main one"));
        status["hangs"].as_array()?.iter().find(is_it).cloned()
    });
    assert_eq!((&hang["service"], &hang["sure"]), (&"two.service".into(), &"certain".into()), "{hang:#}");
    until("a line of the file", || {
        let active = std::fs::read_to_string(agent.folder.join("run/active.json")).ok()?;
        active.lines().any(|line| line.contains("\"sure\":\"certain\"")).then_some(())
    });
    assert_eq!([&mut healthy, &mut hung].map(|c| c.0.try_wait().expect("a child")), [None, None]);
}
