//! What a program does once, as it exits, is no hang for being longer than its usual jobs: there the limit's worth of CPU is allowed.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Event, Kind};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"
#include <poll.h>
#include <stdlib.h>
#include <time.h>

static double allowed;

static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void tidies_up(void) {
    for (double end = used() + allowed; used() < end;) {
        for (volatile int n = 0; n < 10000000; n++) {
        }
    }
}

int main(int argc, char **argv) {
    allowed = argc > 1 ? atof(argv[1]) : 0;
    atexit(tidies_up);
    for (int i = 0; i < 400; i++) {
        poll(NULL, 0, 5);
    }
    return 0;
}
"#;

#[test]
fn a_long_last_job_and_an_endless_one() {
    let dir = Dir::new("way-out");
    let Some(path) = dir.build("leaves", SOURCE) else { return };
    // Ten times what a job of this loop may use, and far less than the limit.
    let config = |limit| Config { limit: Duration::from_secs(limit), ..Config::default() };
    let mut program = Program::start(Command::new(&path).arg("1.5"));
    let mut watcher = Watcher::of(program.pid(), config(30));
    while program.0.try_wait().expect("the program").is_none() {
        watcher.look();
    }
    watcher.quiet();
    let program = Program::start(Command::new(&path).arg("1e9"));
    let mut watcher = Watcher::of(program.pid(), config(2));
    watcher.until("the hang", |all| all.iter().any(|e| matches!(e, Event::Hang(_))));
    let hang = watcher.hangs()[0];
    assert!(hang.kind == Kind::Busy && hang.usual.is_none(), "{hang:#?}");
    assert!(hang.why.contains("allowed 2000 ms (it is on its way out, in exit:"), "{}", hang.why);
    assert!(hang.progress >= hang.check_value, "{hang:#?}");
}
