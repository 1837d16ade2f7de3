//! A campaign finds the call whose fault crashes, hangs or falsifies a program, and passes over
//! those that it handles.

mod common;
use common::guest;
use orbit_hijack::campaign::{Campaign, Trial, Verdict};

fn trials(faults: &str) -> Vec<Trial> {
    let program = guest("faulty", &[]);
    Campaign::new(faults, vec![program.into()]).expect("known faults").run(|_| Ok(())).expect("trials")
}

fn has(trials: &[Trial], call: &str, verdict: Verdict) -> bool {
    trials.iter().any(|trial| trial.call == call && trial.verdict == verdict)
}

#[test]
fn a_crash_a_hang_and_lost_data_are_distinguished() {
    let all = trials("eintr,enomem,short-read,emfile");
    assert!(has(&all, "mmap", Verdict::Crashed), "a result of mmap is not checked: {all:?}");
    assert!(has(&all, "pipe2", Verdict::Hung), "after a failed pipe2 it waits for ever: {all:?}");
    assert!(has(&all, "read", Verdict::LostData), "a short read is taken for all: {all:?}");
    assert!(has(&all, "poll", Verdict::Failed) && has(&all, "dup", Verdict::Unaffected), "{all:?}");
}

#[test]
fn a_rule_replays_its_run() {
    let crash = trials("enomem").into_iter().find(|trial| trial.verdict == Verdict::Crashed).expect("a crash");
    let rules = orbit_hijack::rules::Rules::parse(&crash.rule).expect("a rule");
    let program = guest("faulty", &[]);
    let options = orbit_hijack::Options { rules, ..Default::default() };
    assert_eq!(common::run(&options, &[program.to_str().expect("a path")]).outcome.status, crash.status);
}

#[test]
fn a_loader_that_gives_up_is_no_crash_of_the_program() {
    let all = Campaign::new("enomem", vec!["true".into()]).expect("known").run(|_| Ok(())).expect("trials");
    assert!(all.iter().any(|trial| trial.verdict == Verdict::Start), "{all:?}");
    assert!(all.iter().all(|trial| trial.verdict >= Verdict::Failed), "{all:?}");
}

#[test]
fn each_stack_of_one_instruction_meets_the_fault() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("second-data");
    let program = guest("second", &["-g", "-fno-inline"]);
    let campaign = Campaign::new("enospc", vec![program.into(), file.clone().into()]).expect("known");
    let check = format!("cat {}", file.display());
    let trials = campaign.check(Some(check)).run(|_| Ok(())).expect("trials");
    let verdict_in = |function: &str| {
        let is_in = |trial: &&Trial| trial.stack.iter().any(|frame| frame.contains(function));
        trials.iter().find(is_in).map(|trial| trial.verdict)
    };
    assert_eq!(verdict_in("writes_first+"), Some(Verdict::Failed), "{trials:#?}");
    assert_eq!(verdict_in("writes_second+"), Some(Verdict::LostData), "{trials:#?}");
}

#[test]
fn an_unknown_fault_is_a_sentence() {
    let error = Campaign::new("eintr,ebad", vec!["true".into()]).err().expect("refused");
    assert!(error.starts_with("no fault `ebad`; there are eintr, enomem"), "{error}");
}
