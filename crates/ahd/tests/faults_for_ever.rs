//! A thread that faults again and again, because a signal's handler does not mend it, is said to be in no system call.

mod common;
use common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Kind};
use std::process::Command;

const SOURCE: &str = r#"
#include <poll.h>
#include <signal.h>
#include <stddef.h>

static void mends_nothing(int s) { (void)s; }

static int *volatile nowhere;

__attribute__((noinline)) static void faults(void) { *nowhere = 1; }

int main(void) {
    signal(SIGSEGV, mends_nothing);
    for (int i = 0; i < 400; i++) {
        poll(NULL, 0, 5);
    }
    faults();
    return 0;
}
"#;

#[test]
fn a_handler_that_mends_nothing() {
    let dir = Dir::new("faults");
    let Some(path) = dir.build("faults", SOURCE) else { return };
    let program = Program::start(&mut Command::new(path));
    let mut watcher = Watcher::of(program.pid(), Config::default());
    let hang = watcher.hang();
    assert_eq!((hang.kind, hang.tid), (Kind::Busy, program.pid()), "{hang:#?}");
    assert!(!hang.why.contains("inside a system call"), "{}", hang.why);
}
