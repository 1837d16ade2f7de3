//! A thread inside one long system call is told as just that, and looking does not cut the call short.

mod common;
use common::{Dir, Program, Watcher, functions};
use orbit_ahd::{Config, Kind};
use orbit_inspect::Sure;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_call_that_takes_seconds() {
    let dir = Dir::new("long-call");
    let Some(fares) = dir.program() else { return };
    let mut p = Program::start(Command::new(fares).arg("long-call"));
    let mut w = Watcher::of(p.pid(), Config::default());
    w.run(Duration::from_secs(4));
    w.quiet();
    p.signal(libc::SIGUSR1);
    let status = loop {
        w.look();
        if let Some(status) = p.0.try_wait().expect("the program") {
            break status;
        }
    };
    assert_eq!(status.code(), Some(7), "the call was cut short");
    if w.hangs().is_empty() {
        println!("SKIP: needs a slower machine: the call ended before anything was told");
    }
    for hang in w.hangs() {
        assert_eq!((hang.kind, hang.sure), (Kind::Busy, Sure::Guess), "{hang:#?}");
        assert!(hang.why.contains("is inside ") && !hang.why.contains("spins"), "{hang:#?}");
        assert_eq!(hang.threads[0].does, "is inside the kernel");
        if let Some(note) = &hang.threads[0].note {
            println!("SKIP: needs the stack of a thread inside the kernel: {note}");
        } else {
            assert!(functions(hang).contains(&"one_long_call"), "{hang:#?}");
        }
    }
}
