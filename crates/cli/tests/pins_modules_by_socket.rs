//! A core's modules are listed, unloaded and loaded from outside, and nothing of the core is left
//! after `kill -9`: neither its name, nor its modules' processes; the guarded program continues.

mod guard_common;
use guard_common::{Owned, until};
use orbit_console::control;
use serde_json::Value;
use std::process::{Command, Stdio};

fn orbit(args: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_orbit")).args(args).output().expect("orbit runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// This core in the list, once it is there.
fn core(pid: u32) -> Option<Value> {
    let (_, text, _) = orbit(&["modules", "--json"]);
    let list: Value = serde_json::from_str(&text).expect("JSON");
    list["cores"].as_array()?.iter().find(|core| core["core"] == pid).cloned()
}

fn names(core: &Value) -> Vec<&str> {
    core["modules"].as_array().expect("modules").iter().filter_map(|module| module["module"].as_str()).collect()
}

#[test]
fn modules_are_listed_unloaded_and_loaded() {
    let (_, pins, _) = orbit(&["pins", "--json"]);
    let pins: Value = serde_json::from_str(&pins).expect("JSON");
    let full = |name: &str| {
        let rows = pins["pins"].as_array().expect("pins");
        rows.iter().any(|row| row["pin"] == name && row["state"] == "available")
    };
    if !full("P_SYSC") || !full("P_SCHL") {
        println!("SKIP: needs kernel programs (root, or CAP_BPF and CAP_PERFMON)");
        return;
    }
    let script = "while :; do sleep 0.01; done";
    let guarded = Owned(Command::new("sh").args(["-c", script]).spawn().expect("sh"));
    let mut runs = Owned(
        Command::new(env!("CARGO_BIN_EXE_orbit"))
            .args(["modules", "run", "silence", "switches", "--events", "-", "--pid"])
            .arg(guarded.0.id().to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("orbit runs"),
    );
    let pid = runs.0.id();
    let number = pid.to_string();
    let found = until("both modules get events", || {
        let core = core(pid)?;
        let modules = core["modules"].as_array()?;
        let seen = |module: &Value| module["delivered"].as_u64().is_some_and(|n| n > 0) && module["state"] == "up";
        (modules.len() == 2 && modules.iter().all(seen)).then_some(core)
    });
    assert_eq!(names(&found), ["silence", "switches"]);
    assert_eq!(found["modules"][0]["pins"], serde_json::json!(["P_SYSC"]), "{found}");
    assert_eq!(found["guarded"], serde_json::json!([guarded.0.id()]));

    let (done, _, said) = orbit(&["modules", "unload", "silence", "--core", &number]);
    assert!(done, "{said}");
    let without = core(pid).expect("the core");
    assert_eq!(names(&without), ["switches"]);
    let loaded: Vec<_> = without["pins"].as_array().expect("pins").iter().map(|pin| &pin["pin"]).collect();
    assert_eq!(loaded, ["P_SCHL"], "the last user's pin is unloaded");
    let (done, _, said) = orbit(&["modules", "unload", "silence", "--core", &number]);
    assert!(!done && said.contains("silence") && said.contains("switches"), "{said}");

    let (done, _, said) = orbit(&["modules", "load", "silence", "--core", &number]);
    assert!(done, "{said}");
    let (done, _, said) = orbit(&["modules", "load", "nonesuch", "--core", &number]);
    assert!(!done && said.contains("nonesuch") && said.contains("silence, switches"), "{said}");
    let again = core(pid).expect("the core");
    assert_eq!(names(&again), ["switches", "silence"]);

    let other = Owned(Command::new("sh").args(["-c", script]).spawn().expect("sh"));
    let (both, one) = ([guarded.0.id(), other.0.id()], other.0.id().to_string());
    let (done, _, said) = orbit(&["modules", "guard", &one, "--core", &number]);
    assert!(done, "{said}");
    let mut sorted = both;
    sorted.sort_unstable();
    assert_eq!(core(pid).expect("the core")["guarded"], serde_json::json!(sorted));
    let (done, _, said) = orbit(&["modules", "unguard", &one, "--core", &number]);
    assert!(done, "{said}");
    assert_eq!(core(pid).expect("the core")["guarded"], serde_json::json!([guarded.0.id()]));
    let (done, _, said) = orbit(&["modules", "unguard", &one, "--core", &number]);
    assert!(!done && said.contains(&one), "{said}");
    let (done, _, said) = orbit(&["modules", "guard", "4194304", "--core", &number]);
    assert!(!done && said.contains("4194304"), "{said}");

    let (_, text, _) = orbit(&["pins", "--json"]);
    let pins: Value = serde_json::from_str(&text).expect("JSON");
    let schl = pins["pins"].as_array().and_then(|rows| rows.iter().find(|row| row["pin"] == "P_SCHL")).expect("P_SCHL");
    let here = schl["loaded"].as_array().and_then(|all| all.iter().find(|one| one["core"] == pid)).expect("loaded");
    assert_eq!(here["users"], serde_json::json!(["switches"]), "{here}");

    let processes: Vec<i64> =
        again["modules"].as_array().expect("modules").iter().filter_map(|module| module["pid"].as_i64()).collect();
    assert!(processes.len() == 2 && processes.iter().all(|pid| *pid > 0), "{again}");
    runs.0.kill().expect("kill -9");
    runs.0.wait().expect("its end");
    until("its name and its modules are gone", || {
        let gone = |pid: &i64| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // One that only waits to be reaped by a pid 1 that may not is as gone.
            stat.is_empty() || stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
        };
        (!control::owners("core").contains(&(pid as i32)) && processes.iter().all(gone)).then_some(())
    });
    assert!(core(pid).is_none());
    assert!(std::path::Path::new(&format!("/proc/{}", guarded.0.id())).exists(), "the guarded program goes on");
}
