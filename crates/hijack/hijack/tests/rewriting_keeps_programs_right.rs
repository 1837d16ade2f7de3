//! Four threads run sites while these are rewritten; data that looks like code, the red zone,
//! registers and protections stay as they are.

mod common;
use common::{guest, run};
use orbit_hijack::Options;

#[test]
fn nothing_differs_in_a_rewritten_program() {
    let program = guest("pitfalls", &[]);
    let path = program.to_str().expect("a path");
    for _ in 0..3 {
        let run = run(&Options::default(), &[path]);
        assert_eq!((run.outcome.status, run.stdout.as_str()), (0, "failures 0\n"));
        assert!(run.outcome.rewritten > 550, "{} of 600 sites were rewritten", run.outcome.rewritten);
        assert!(run.outcome.traps < 10_000, "{} of 72,000 calls came by signal", run.outcome.traps);
    }
}

#[test]
fn a_program_that_is_left_as_it_is_works_too() {
    let program = guest("pitfalls", &[]);
    let run = run(&Options { no_rewrite: true, ..Options::default() }, &[program.to_str().expect("a path")]);
    assert_eq!((run.outcome.status, run.outcome.rewritten), (0, 0), "{}", run.stdout);
    let calls: u64 = run.outcome.calls.values().sum();
    assert!(run.outcome.traps + 1 >= calls, "every call came by signal");
}
