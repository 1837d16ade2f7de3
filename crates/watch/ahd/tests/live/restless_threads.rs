//! Threads that come after hundreds of restless ones are inspected too: more need it than there
//! are in one tick.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Kind};
use std::process::Command;
use std::time::Duration;

const RESTLESS: &str = "300";

/// Watches `fares behind`, which then hangs in this way.
fn behind(name: &str, way: &str, check: impl FnOnce(&mut Watcher)) {
    let dir = Dir::new(name);
    let Some(fares) = dir.program() else { return };
    let p = Program::start(Command::new(fares).args(["behind", RESTLESS, way]));
    // Nothing is found only because the limit is over.
    let mut w = Watcher::of(p.pid(), Config { limit: Duration::from_secs(600), ..Config::default() });
    w.run(Duration::from_secs(8));
    w.quiet();
    p.signal(libc::SIGUSR1);
    check(&mut w);
    w.run(Duration::from_secs(2));
    assert_eq!(w.hangs().len(), 1, "one hang, reported once");
}

#[test]
fn a_ring_of_the_last_threads() {
    behind("restless-ring", "ring", |w| {
        let hang = w.hang();
        assert_eq!((hang.kind, hang.cycle.len()), (Kind::Blocked, 2), "{hang:#?}");
    });
}
