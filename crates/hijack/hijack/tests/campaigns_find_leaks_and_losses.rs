//! A campaign finds a crash, a hang, each kind of leak and lost data in a program that has one of
//! each, with the function they are in and a command that replays the run; in its twin without bugs
//! without bugs it finds nothing.

mod common;
use common::guest;
use orbit_hijack::campaign::{Campaign, Trial, Verdict};
use std::path::{Path, PathBuf};

const FAULTS: &str = "enospc,emfile,short-write";

fn place(name: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Of an earlier run.
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir(&place).expect("a folder");
    place
}

fn campaign(flags: &[&str], name: &str) -> Vec<Trial> {
    let (program, place) = (guest("careless", flags), place(name));
    // It succeeds also after a run that says it failed before it made the file.
    let check = format!("if [ -e {0}/data ]; then cat {0}/data; fi", place.display());
    let prepare = format!("rm -rf {0}; mkdir {0}", place.display());
    let campaign = Campaign::new(FAULTS, vec![program.into(), place.into()]).expect("known faults");
    campaign.prepare(Some(prepare)).check(Some(check)).run(|_| Ok(())).expect("trials")
}

fn assert_finds(trials: &[Trial], call: &str, verdict: Verdict, function: &str, finding: &str) {
    let is_in = |trial: &&Trial| trial.call == call && trial.stack.iter().any(|frame| frame.contains(function));
    let found = trials.iter().filter(is_in).find(|trial| trial.verdict == verdict);
    let found = found.unwrap_or_else(|| panic!("no run has {call} in {function}, {verdict:?}: {trials:#?}"));
    assert!(found.findings.join("; ").contains(finding), "{finding}: {found:#?}");
    assert!(found.stack.iter().any(|frame| frame.starts_with("main+")), "{:?}", found.stack);
}

#[test]
fn each_bug_is_found_in_its_function() {
    let trials = campaign(&["-g"], "careless");
    assert_finds(&trials, "mkdir", Verdict::Crashed, "crashes+", "");
    assert_finds(&trials, "pipe2", Verdict::Hung, "hangs+", "");
    let descriptor = "descriptors are open at the exit";
    assert_finds(&trials, "fdatasync", Verdict::Leaked, "leaks_descriptor+", descriptor);
    let memory = "1024 KiB more memory at the exit than without the fault";
    assert_finds(&trials, "fsync", Verdict::Leaked, "leaks_memory+", memory);
    assert_finds(&trials, "ftruncate", Verdict::Leaked, "leaks_child+", "still runs");
    assert_finds(&trials, "ftruncate", Verdict::Leaked, "leaks_child+", "children are not waited for");
    assert_finds(&trials, "rename", Verdict::Leaked, "leaves_file+", "t.tmp is left");
    assert_finds(
        &trials,
        "pwrite64",
        Verdict::LostData,
        "loses_data+",
        "it reports success, and the check writes \"i\"",
    );
}

#[test]
fn the_twin_without_bugs_passes() {
    let trials = campaign(&["-g", "-DHEALTHY"], "careful");
    assert!(trials.len() >= 8, "{trials:#?}");
    let bad: Vec<_> = trials.iter().filter(|trial| trial.verdict < Verdict::Failed).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn memory_by_mmap_in_place_of_brk_is_no_leak() {
    let campaign = Campaign::new("enomem", ["cat", "/etc/passwd"].map(Into::into).to_vec()).expect("known");
    let trials = campaign.run(|_| Ok(())).expect("trials");
    assert!(trials.iter().any(|trial| trial.call == "brk"), "{trials:#?}");
    let leaked: Vec<_> = trials.iter().filter(|trial| trial.verdict == Verdict::Leaked).collect();
    assert!(leaked.is_empty(), "{leaked:#?}");
}

#[test]
fn output_that_differs_from_run_to_run_is_not_lost() {
    let campaign = Campaign::new("eintr", ["sh", "-c", "echo $$"].map(Into::into).to_vec()).expect("known");
    let trials = campaign.run(|_| Ok(())).expect("trials");
    assert!(!trials.is_empty() && trials.iter().all(|trial| trial.not_compared == ["output"]), "{trials:#?}");
    assert!(trials.iter().all(|trial| trial.verdict != Verdict::LostData), "{trials:#?}");
}

#[test]
fn what_was_found_names_the_command_that_replays_it() {
    let place = place("replayed");
    let campaign = Campaign::new("enospc", vec![guest("careless", &["-g"]).into(), place.into()]).expect("known");
    let crash = campaign.run(|_| Ok(())).expect("trials").into_iter().find(|trial| trial.verdict == Verdict::Crashed);
    let crash = crash.expect("a crash");
    assert!(crash.replay.starts_with("orbit hijack --inject 'mkdir -> ENOSPC after 0 once' -- /"), "{}", crash.replay);
    assert!(crash.replay.ends_with("/replayed"), "{}", crash.replay);
    assert_eq!(crash.status, 128 + libc::SIGSEGV);
}

#[test]
fn a_check_that_fails_without_a_fault_is_an_error() {
    let campaign =
        Campaign::new("eintr", vec!["true".into()]).expect("known").check(Some("echo no; exit 3".to_owned()));
    let error = campaign.run(|_| Ok(())).expect_err("no campaign").to_string();
    assert_eq!(error, "the check must succeed without a fault: its status was 3, it wrote \"no\\n\"");
}
