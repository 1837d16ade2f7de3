//! Every facility that the oldest supported kernel has must probe as usable; the others work or
//! give a reason.

use orbit_linux::*;

#[test]
fn the_basic_facilities_are_there() {
    for (name, support) in [
        ("map", map::probe()),
        ("memfd", memfd::probe()),
        ("descriptors", descriptors::probe()),
        ("futex", futex::probe()),
        ("process", process::probe()),
        ("pidfd", pidfd::probe()),
        ("socket", socket::probe()),
        ("eventfd", eventfd::probe()),
        ("inotify", inotify::probe()),
        ("poll", poll::probe()),
        ("rlimit", rlimit::probe()),
    ] {
        assert_eq!(support, Support::Yes, "{name}");
    }
}

#[test]
fn the_others_work_or_say_why_not() {
    for (name, support) in [
        ("uffd", uffd::probe()),
        ("pagemap", pagemap::probe()),
        ("cgroup", cgroup::probe()),
        ("perf", perf::probe()),
        ("perf, instructions", perf::probe_instructions()),
        ("perf, breakpoint", perf::probe_breakpoint()),
        ("sched", sched::probe()),
        ("seccomp", seccomp::probe()),
    ] {
        println!("{name}: {support:?}");
        if let Some(why) = support.reason() {
            assert!(why.contains(": "), "{why:?} names neither the facility nor the error");
        }
    }
}

#[test]
fn a_probe_leaves_no_descriptor_and_no_child_behind() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    let probe_all = || {
        let _ = (map::probe(), memfd::probe(), futex::probe(), process::probe(), pidfd::probe(), socket::probe());
        let _ = (eventfd::probe(), poll::probe(), uffd::probe(), pagemap::probe(), cgroup::probe(), perf::probe());
        let _ = (perf::probe_instructions(), perf::probe_breakpoint(), sched::probe(), rlimit::probe());
        let _ = descriptors::probe();
    };
    // Other tests of this file run beside this one and hold descriptors briefly: repeat until it
    // is quiet.
    probe_all();
    let before = descriptors();
    let leaks = (0..20).all(|_| {
        probe_all();
        std::thread::sleep(std::time::Duration::from_millis(20));
        descriptors() > before
    });
    assert!(!leaks, "descriptors grew from {before} to {}", descriptors());
}
