//! `orbit modules` sees the guard's detector, unloads it and loads it again;
//! `orbit modules load ahd --pid` makes any core watch a program.

mod guard_common;
use guard_common::{Dir, Guard, PATIENCE, build, signal, skipped};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A child that is killed and reaped when the test lets go of it.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn modules(args: &[&str], core: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    command.arg("modules").args(args);
    if core != 0 {
        command.args(["--core", &core.to_string()]);
    }
    let output = command.output().expect("orbit runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The detector of this core in the list, once it is there and as wanted.
fn listed(core: i32, wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let list: Value = serde_json::from_str(&modules(&["--json"], 0)).expect("JSON");
        let here = list["cores"].as_array().and_then(|all| all.iter().find(|one| one["core"] == core)).cloned();
        let there = here.clone().and_then(|core| {
            let modules = core["modules"].as_array()?;
            modules.iter().any(|module| module["module"] == "ahd" && wanted(module)).then_some(core)
        });
        if let Some(core) = there {
            return core;
        }
        assert!(start.elapsed() < PATIENCE, "not listed so: {here:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn program(dir: &Dir) -> (String, String) {
    let path = |path: &Path| path.to_str().expect("a path").to_owned();
    (path(&build(dir, "later.c")), path(&dir.0.join("now")))
}

#[test]
fn the_guards_own_detector() {
    if skipped() {
        return;
    }
    let dir = Dir::new("by-hand");
    let (program, now) = program(&dir);
    let mut guard = Guard::start(&dir, &[], &[&program, &now, "self"]);
    let pid = guard.program();
    let core = listed(guard.id(), |module| module["delivered"].as_u64() > Some(0));
    let ahd = &core["modules"][0];
    assert_eq!((&ahd["pins"], &ahd["state"]), (&serde_json::json!(["P_PERI"]), &"up".into()), "{core:#}");
    assert_eq!((&ahd["lost"], &ahd["faults"]), (&0.into(), &0.into()), "{core:#}");
    assert_eq!(core["guarded"], serde_json::json!([pid]));
    modules(&["unload", "ahd"], guard.id());
    while guard.next("module")["state"] != "unloaded" {}
    modules(&["load", "ahd"], guard.id());
    while guard.next("module")["state"] != "loaded" {}
    dir.file("now", "");
    assert_eq!(guard.next("hang")["pid"], pid);
}

#[test]
fn a_program_of_a_core_that_runs() {
    if skipped() {
        return;
    }
    let dir = Dir::new("load-pid");
    let (program, now) = program(&dir);
    let hangs = Owned(Command::new(program).args([&now, "self"]).spawn().expect("the program"));
    let pid = hangs.0.id();
    let mut runs = Owned(
        Command::new(env!("CARGO_BIN_EXE_orbit"))
            .args(["modules", "run", "ahd", "--events", "-"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("orbit runs"),
    );
    let core = runs.0.id() as i32;
    listed(core, |module| module["state"] == "up");
    modules(&["unload", "ahd"], core);
    modules(&["load", "ahd", "--pid", &pid.to_string()], core);
    dir.file("now", "");
    // The limit is the test's: a hang that is not reported ends the core after a while, and with it
    // the lines.
    let started = Instant::now();
    let stop = std::thread::spawn(move || {
        while started.elapsed() < PATIENCE && Path::new(&format!("/proc/{core}")).exists() {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        started.elapsed() < PATIENCE || {
            signal(core, libc::SIGKILL);
            false
        }
    });
    let lines = BufReader::new(runs.0.stdout.take().expect("a pipe")).lines();
    let report = lines.map_while(Result::ok).find_map(|line| {
        let report: Value = serde_json::from_str(&line).expect("JSON");
        let event: Value = serde_json::from_str(report["text"].as_str()?).ok()?;
        (event["event"] == "hang").then_some(event)
    });
    let report = report.expect("the hang is reported");
    assert_eq!((&report["pid"], &report["kind"]), (&pid.into(), &"blocked".into()), "{report:#}");
    drop(runs);
    assert!(stop.join().expect("the watch"), "in time");
}
