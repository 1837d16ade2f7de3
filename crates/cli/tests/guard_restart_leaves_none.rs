//! `--on-hang restart` ends all that the hung program made, whoever is its parent by then, and none
//! of the guard's own processes; what ends by itself meanwhile leaves nothing behind either.

mod guard_common;
use guard_common::{Dir, Guard, PATIENCE, build, skipped};
use orbit_linux::procfs;
use std::time::Instant;

/// Processes that run with this text in their command line, but for the guard itself.
fn running(text: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let named = |pid: &i32| procfs::text(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(text);
    pids.filter(named).collect()
}

fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "still not so: {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Hangs at its first start; its children sleep, one in a session of its own, one without its
/// parent from the start.
fn restarted(options: &[&str], name: &str) {
    if skipped() {
        return;
    }
    let dir = Dir::new(name);
    let program = build(&dir, "hangs.c");
    // A name of this test's own.
    let stray = dir.0.join(format!("stray-{name}"));
    // By a process of its own: a file that this one writes is no program as long as a child of
    // another test has it too.
    assert!(std::process::Command::new("cp").arg("/bin/sleep").arg(&stray).status().expect("cp").success());
    let (stray, marker) = (stray.display().to_string(), dir.0.join("second"));
    let script = format!(
        "if [ -e {0} ]; then exec sleep 300; fi; echo >{0}; {1} 297 & setsid {1} 298 & ({1} 299 &); ({1} 0 &); exec \
         {2} self",
        marker.display(),
        stray,
        program.display()
    );
    let mut guard = Guard::start(&dir, &[options, &["--on-hang", "guess:restart"]].concat(), &["sh", "-c", &script]);
    guard.next("hang");
    let action = guard.next("action");
    let said = action["did"].as_str().expect("words").to_owned();
    assert!(said.contains("started it again"), "{said}");
    assert_eq!(running(&stray), Vec::<i32>::new(), "all that the first one made has ended");
    let children = || {
        let id = guard.id();
        procfs::text(format!("/proc/{id}/task/{id}/children")).expect("children")
    };
    let ended = |pid: &str| {
        let stat = procfs::text(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
    };
    until("all that ended is reaped", || !children().split_whitespace().any(ended));
    let faults = guard.events().into_iter().filter(|e| e["event"] == "module" && e["state"] != "loaded");
    let faults: Vec<_> = faults.filter(|e| e["state"] != "in-process").collect();
    assert!(faults.is_empty(), "the guard's own processes go on: {faults:?}");
}

#[test]
fn of_what_the_program_made() {
    restarted(&[], "leaves-none");
}

#[test]
fn with_the_detection_in_the_guard() {
    restarted(&["--in-process"], "leaves-none-here");
}
