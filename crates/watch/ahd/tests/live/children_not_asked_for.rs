//! A process that catches SIGCHLD and waits beside children that have exited is a guess at the
//! limit, which names them; one that asks for its children is not reported.

use crate::common::{Dir, Program, Watcher, at_once};
use orbit_ahd::{Config, Event};
use orbit_inspect::Sure;
use std::process::Command;
use std::time::Duration;

/// Makes three children that exit before the wait begins, and waits in the way that it is given;
/// `loop` makes one after the other and asks for each.
const PROGRAM: &str = r#"
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

static void note(int signal) { (void)signal; }

int main(int count, char **arguments)
{
    const char *way = arguments[count - 1];
    siginfo_t info;
    sigset_t none;
    int children[3], ends[2];
    sigemptyset(&none);
    signal(SIGCHLD, note);
    if (!strcmp(way, "loop"))
        for (;;) {
            if (fork() == 0) {
                usleep(200000);
                _exit(0);
            }
            wait(0);
        }
    if (pipe(ends))
        return 1;
    for (int nth = 0; nth < 3; nth++)
        if ((children[nth] = fork()) == 0)
            _exit(0);
    for (int nth = 0; nth < 3; nth++)
        while (waitid(P_PID, children[nth], &info, WEXITED | WNOWAIT))
            ;
    struct pollfd polled = {ends[0], POLLIN, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    for (;;) {
        if (!strcmp(way, "pause"))
            pause();
        if (!strcmp(way, "sigsuspend"))
            sigsuspend(&none);
        if (!strcmp(way, "select"))
            select(ends[0] + 1, &set, 0, 0, 0);
        if (!strcmp(way, "poll"))
            poll(&polled, 1, -1);
    }
}
"#;

fn watched(way: &str) -> Option<(Dir, Program, Watcher)> {
    let dir = Dir::new(&format!("children-{way}"));
    let program = Program::start(Command::new(dir.build("children", PROGRAM)?).arg(way));
    let watcher = Watcher::of(program.pid(), Config { limit: Duration::from_secs(2), ..Config::default() });
    Some((dir, program, watcher))
}

#[test]
fn are_named() {
    at_once(["pause", "sigsuspend", "select", "poll"], |way| {
        let Some((_dir, program, mut watcher)) = watched(way) else { return };
        let hang = watcher.hang();
        assert_eq!(hang.tid, program.pid());
        assert!(hang.why.contains("3 of its children have exited and were not asked for ("), "{way}: {}", hang.why);
        // Nobody but itself could write into the pipe: that much is sure of `poll` without them.
        assert_eq!(hang.sure, if way == "poll" { Sure::Likely } else { Sure::Guess }, "{way}: {}", hang.why);
    });
}

#[test]
fn a_loop_that_asks_for_each() {
    let Some((_dir, _program, mut watcher)) = watched("loop") else { return };
    watcher.run(Duration::from_secs(8));
    assert!(!watcher.events.iter().any(|event| matches!(event, Event::Hang(_))), "{:?}", watcher.hangs());
}
