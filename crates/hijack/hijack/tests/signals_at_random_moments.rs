//! 10,000 signals at random moments in a guest that checks every call: none is lost, none comes
//! twice, no result is wrong.

mod common;
use common::{guest, run};
use orbit_hijack::Options;

fn assert_all_arrive(options: &Options) -> u64 {
    let program = guest("signals", &[]);
    let run = run(options, &[program.to_str().expect("a path"), "10000"]);
    assert_eq!(run.outcome.status, 0, "{}", run.stdout);
    assert!(run.stdout.contains("bad 0 wrong 0 sent 10000 got 10000"), "{}", run.stdout);
    assert_eq!(run.outcome.delivered_signals, 10_000);
    run.outcome.deferred_signals
}

#[test]
fn at_rewritten_sites() {
    assert_all_arrive(&Options::default());
}

#[test]
fn at_sites_that_are_not_rewritten() {
    assert_all_arrive(&Options { no_rewrite: true, ..Options::default() });
}

#[test]
fn in_the_executive() {
    let deferred = assert_all_arrive(&Options { trace: true, ..Options::default() });
    assert!(deferred > 100, "{deferred} signals arrived in the executive");
}
