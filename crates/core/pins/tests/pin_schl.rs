//! P_SCHL reports the context switches, children and end of a listed process, and counts what it
//! does not send.

mod common;
use common::{Guest, event, kernel_programs_or_skip, until};
use orbit_rmk::{Command, Event, Filter, Kind, Reply};
use std::{io::Write, time::Duration};

#[test]
fn switches_children_and_the_end_are_seen() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("watcher");
    module.use_pin("P_SCHL").expect("P_SCHL");
    let mut guest = Guest::shell("read go; sleep 0.01; exit 3");
    let pid = guest.pid();
    for kind in [Kind::ContextSwitch, Kind::Started, Kind::Executed, Kind::Ended] {
        module.subscr_event("P_SCHL", kind, Filter::pids(&[pid])).expect("a subscription");
    }
    guest.0.stdin.take().expect("a pipe").write_all(b"go\n").expect("write");
    let mut kinds = Vec::new();
    let end = event(&module, "the guest's end", |event| {
        kinds.push(event.kind().expect("a known kind"));
        event.kind() == Some(Kind::Ended) && event.pid == pid
    });
    assert_eq!((end.values[0] >> 8 & 0xff, end.values[1]), (3, 1), "exit code 3, last thread");
    for kind in [Kind::ContextSwitch, Kind::Started, Kind::Executed] {
        assert!(kinds.contains(&kind), "{kind} among {kinds:?}");
    }
}

#[test]
fn every_cpu_is_counted_without_a_subscription() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("counter");
    module.use_pin("P_SCHL").expect("P_SCHL");
    let total = || match module.issue_cmd("P_SCHL", &Command::CpuStates).expect("CpuStates") {
        Reply::Cpus { cpus } => cpus.iter().map(|cpu| cpu.switches).sum::<u64>(),
        other => panic!("{other:?}"),
    };
    let before = total();
    until("ten more switches", || total() >= before + 10);
}

#[test]
fn count_only_sends_nothing() {
    if !kernel_programs_or_skip() {
        return;
    }
    let core = orbit_pins::core().expect("a core");
    let module = core.client("counter");
    module.use_pin("P_SCHL").expect("P_SCHL");
    let guest = Guest::shell("while :; do sleep 0.002; done");
    let id = module
        .subscr_event("P_SCHL", Kind::ContextSwitch, Filter::pids(&[guest.pid()]).count_only())
        .expect("a subscription");
    until("twenty switches", || module.counts(id).expect("counts").passed >= 20);
    let counts = module.counts(id).expect("counts");
    assert_eq!((counts.due, counts.delivered, counts.lost), (0, 0, 0));
}

#[test]
fn without_kernel_programs_listed_processes_are_sampled() {
    let core = orbit_pins::builder().kernel_programs(false).build().expect("a core");
    let module = core.client("sampler");
    module.use_pin("P_SCHL").expect("P_SCHL");
    let guest = Guest::shell("while :; do sleep 0.002; done");
    let filter = || Filter::pids(&[guest.pid()]).interval(Duration::from_millis(10));
    module.subscr_event("P_SCHL", Kind::ContextSwitch, filter()).expect("a subscription");
    let seen = event(&module, "a sampled switch", Event::is_sampled);
    assert_eq!((seen.kind(), seen.pid), (Some(Kind::ContextSwitch), guest.pid()));
    let refused =
        module.subscr_event("P_SCHL", Kind::Ended, filter()).expect_err("Ended cannot be sampled").to_string();
    assert!(
        refused.contains("P_SCHL") && refused.contains("sampler") && refused.contains("kernel programs"),
        "{refused}"
    );
}
