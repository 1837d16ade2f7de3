//! A main loop that waits where it never did before is reported at the limit; threads that take
//! turns at the events are not.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Kind};
use orbit_inspect::Sure;
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int epoll;

static void loop(int times) {
    struct epoll_event e;
    for (int i = 0; i < times; i++) {
        epoll_wait(epoll, &e, 1, 5);
    }
}

/* The signal was given before anybody waited. */
static void waits(void) {
    pthread_cond_signal(&cond);
    pthread_mutex_lock(&mutex);
    pthread_cond_wait(&cond, &mutex);
}

static void *other(void *takes_turns) {
    struct epoll_event e;
    if (takes_turns != NULL) {
        loop(400);
        epoll_wait(epoll, &e, 1, -1);
    }
    for (;;) {
        pause();
    }
}

int main(int argc, char **argv) {
    pthread_t t;
    (void)argv;
    epoll = epoll_create1(0);
    pthread_create(&t, NULL, other, argc > 1 ? &t : NULL);
    loop(600);
    waits();
}
"#;
const LIMIT: Duration = Duration::from_millis(500);

fn start(dir: &Dir, how: &[&str]) -> Option<(Program, Watcher)> {
    let program = dir.build("loop", SOURCE)?;
    let program = Program::start(Command::new(&program).args(how));
    let watcher = Watcher::of(program.pid(), Config { limit: LIMIT, ..Config::default() });
    Some((program, watcher))
}

#[test]
fn a_signal_that_came_too_early() {
    let dir = Dir::new("loop-left");
    let Some((program, mut watcher)) = start(&dir, &[]) else {
        return;
    };
    let hang = watcher.hang();
    assert_eq!((hang.kind, hang.tid, hang.sure), (Kind::Blocked, program.pid(), Sure::Guess));
    assert!(hang.since >= LIMIT, "{:?}", hang.since);
}

#[test]
fn threads_that_take_turns() {
    let dir = Dir::new("loop-shared");
    let Some((_program, mut watcher)) = start(&dir, &["turns"]) else {
        return;
    };
    // The loop lasts three seconds, then both threads wait for ever.
    watcher.run(Duration::from_secs(6));
    watcher.quiet();
}
