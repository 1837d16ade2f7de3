//! Whoever ends while probes are still being made ready waits for those that measure what a hit
//! costs.

mod common;
use common::{PATIENCE, until};
use orbit_uprobe::{Duty, State};
use std::time::Duration;

/// Whether this process holds a probe: what the kernel keeps for good if it ends with it.
fn holds_a_probe() -> bool {
    let fds = std::fs::read_dir("/proc/self/fd").expect("own descriptors");
    fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("bpf_link")))
}

#[test]
fn the_probes_that_measure_are_waited_for() {
    let duty = Duty::start(None);
    let starting = || matches!(duty.state(), State::Starting);
    until("nothing is measured", || holds_a_probe() || !starting());
    let settled = duty.settle(Duration::from_millis(1));
    assert!(!settled || !starting(), "it may probe at any time");
    assert!(duty.settle(PATIENCE), "probes are left");
    assert!(!holds_a_probe());
    match duty.state() {
        State::Starting => panic!("it may still probe"),
        State::Ready(_) => {}
        State::Failed(e) => println!("SKIP: needs uprobes ({e})"),
    }
}
