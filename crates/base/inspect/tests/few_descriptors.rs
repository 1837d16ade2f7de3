//! Where few descriptors are available, a ring is found though many threads of other processes are
//! inspected first.

mod common;
use common::{Dir, Running, until};
use orbit_inspect::rings::RingWatch;

#[test]
fn rings_behind_many_threads() {
    let dir = Dir::new("few-descriptors");
    let program = dir.build("locks.c", &["-O2"]);
    let healthy: Vec<Running> = (0..12).map(|_| Running::program(&program, &["healthy"])).collect();
    let hangs = Running::program(&program, &["five"]);
    let few = libc::rlimit { rlim_cur: 100, rlim_max: 100 };
    // SAFETY: plain call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
    let pids: Vec<i32> = healthy.iter().chain([&hangs]).map(Running::pid).collect();
    let mut watch = RingWatch::new(&pids).expect("processes");
    for _ in 0..20 {
        // Once all that is kept open is.
        watch.scan();
    }
    let ring = until("a ring", || watch.scan().pop());
    assert_eq!((ring.members.len(), ring.members[0].pid), (5, hangs.pid()));
    assert!(std::fs::File::open("/proc/self/stat").is_ok(), "some are left for others");
}
