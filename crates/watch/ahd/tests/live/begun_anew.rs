//! A wait that a signal interrupts between two scans, and that the program begins anew, is the same
//! wait: it is reported as if it had never been interrupted.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Kind};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static void noted(int signal) {
    (void)signal;
}

int main(void) {
    int p[2];
    char c;
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = noted;
    sigaction(SIGCHLD, &act, NULL);
    // The child is made long before: nothing dear comes just before the wait.
    if (fork() == 0) {
        usleep(3400 * 1000);
        _exit(0);
    }
    for (int i = 0; i < 60; i++) {
        poll(NULL, 0, 50);
    }
    if (pipe(p) == 0) {
        while (read(p[0], &c, 1) < 0 && errno == EINTR) {
        }
    }
    return 0;
}
"#;

#[test]
fn a_dead_peer_and_a_child_that_ends_a_little_later() {
    let dir = Dir::new("begun-anew");
    let Some(path) = dir.build("anew", SOURCE) else { return };
    let program = Program::start(&mut Command::new(path));
    let limit = Duration::from_secs(2);
    let mut watcher = Watcher::of(program.pid(), Config { limit, ..Config::default() });
    let hang = watcher.hang();
    assert!(hang.kind == Kind::Blocked && hang.tid == program.pid(), "{hang:#?}");
    assert!(hang.why.contains("nobody else can end that"), "{}", hang.why);
}
