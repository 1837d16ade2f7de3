//! A module that does not answer blocks nobody: a stopped one is unloaded at once, and the core
//! answers others meanwhile. What an asker gave up does not happen later.

mod guard_common;
use guard_common::{Dir, Guard, PATIENCE, signal, skipped};
use serde_json::Value;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// Less than a module may take for a call (`deadline_ms`), and time enough for a loaded machine.
const SOON: Duration = Duration::from_secs(8);

fn modules(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_orbit")).arg("modules").args(args).output().expect("orbit runs");
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// The process of the module `ahd` in this core, once it is listed; 0 if it is not loaded.
fn detector(core: i32) -> i32 {
    let start = Instant::now();
    loop {
        let (_, text) = modules(&["--json"]);
        let list: Option<Value> = serde_json::from_str(&text).ok();
        let cores = list.as_ref().and_then(|list| list["cores"].as_array());
        if let Some(here) = cores.and_then(|all| all.iter().find(|one| one["core"] == core)) {
            let all = here["modules"].as_array().expect("modules");
            let ahd = all.iter().find(|module| module["module"] == "ahd");
            return ahd.and_then(|module| module["pid"].as_i64()).unwrap_or(0) as i32;
        }
        assert!(start.elapsed() < PATIENCE, "core {core} is not listed: {text}");
    }
}

/// A guard of a program that sleeps, and its detector's process.
fn guard(dir: &Dir) -> (Guard, i32) {
    let config = dir.file("guard.toml", "deadline_ms = 40000\n");
    let mut guard = Guard::start(dir, &["--config", config.to_str().expect("a path")], &["sleep", "300"]);
    guard.program();
    let module = detector(guard.id());
    assert_ne!(module, 0, "{:?}", guard.events());
    (guard, module)
}

#[test]
fn a_stopped_one_is_unloaded_at_once() {
    if skipped() {
        return;
    }
    let dir = Dir::new("stopped");
    let (guard, module) = guard(&dir);
    let core = guard.id().to_string();
    signal(module, libc::SIGSTOP);
    // The core finds it stopped in the middle of a call.
    std::thread::sleep(Duration::from_secs(2));
    let start = Instant::now();
    let (done, said) = modules(&["unload", "ahd", "--core", &core]);
    assert!(done && start.elapsed() < SOON, "after {:?}: {said}", start.elapsed());
    let state = std::fs::read_to_string(format!("/proc/{module}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "its process is gone: {state}");
    let (done, said) = modules(&["load", "ahd", "--core", &core]);
    assert!(done, "{said}");
    let again = detector(guard.id());
    assert!(again != 0 && again != module, "{again}");
}

#[test]
fn one_that_says_nothing_is_waited_for_by_nobody_else() {
    if skipped() {
        return;
    }
    let dir = Dir::new("silent");
    let (guard, _) = guard(&dir);
    let silent: Vec<_> = (0..4).map(|_| connect(guard.id())).collect();
    let start = Instant::now();
    let (_, text) = modules(&[]);
    assert!(text.contains(&guard.id().to_string()) && !text.contains("no answer"), "{:?}: {text}", start.elapsed());
    drop(silent);
}

#[test]
fn what_was_given_up_does_not_happen_later() {
    if skipped() {
        return;
    }
    let dir = Dir::new("given-up");
    let (guard, _) = guard(&dir);
    let core = guard.id().to_string();
    let (done, said) = modules(&["unload", "ahd", "--core", &core]);
    assert!(done, "{said}");
    let mut asker = connect(guard.id());
    // The line ends only when its sender does: it is not read before that one has gone, however
    // long both take.
    asker.write_all(b"{\"load\":{\"name\":\"ahd\",\"pids\":[]}}").expect("the core listens");
    drop(asker);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(detector(guard.id()), 0, "nobody waits for it");
    let (done, said) = modules(&["load", "ahd", "--core", &core]);
    assert!(done, "{said}");
}

fn connect(core: i32) -> UnixStream {
    orbit_console::control::connect("core", core).expect("the core")
}
