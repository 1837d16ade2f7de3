//! Where every thread waits for another one this is reported soon, though each waits where it
//! usually does; as long as one of them has a time to wake up at, nothing is.

use crate::common::{Dir, Program, Watcher, at_once};
use orbit_ahd::{Config, Kind};
use std::process::Command;
use std::time::Duration;

// Two threads hand a turn to each other; after two seconds one forgets to. "alone": the main thread
// gets its turns from one that ends then. "pipes": they do it by pipes. "sleeps": a third thread
// sleeps for three seconds and wakes them. "chain": the main thread waits for one that each time is
// a new one, made by the last.
const SOURCE: &str = r#"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t here = PTHREAD_COND_INITIALIZER, there = PTHREAD_COND_INITIALIZER;
static int turn, turns;
static const char *way;

static void *gives(void *x) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (turn != 1)
            pthread_cond_wait(&there, &lock);
        usleep(5000);
        turn = 0;
        if (++turns == 350 && strcmp(way, "alone") == 0)
            break;
        if (turns != 350)
            pthread_cond_signal(&here);
    }
    pthread_mutex_unlock(&lock);
    return x;
}

static void *sleeps(void *x) {
    for (;;) {
        sleep(3);
        pthread_cond_broadcast(&here);
    }
    return x;
}

static int to[2], back[2];

static void *answers(void *x) {
    char byte;
    while (read(to[0], &byte, 1) == 1) {
        usleep(5000);
        if (++turns != 350)
            write(back[1], &byte, 1);
    }
    return x;
}

static void *next(void *x) {
    usleep(500000);
    pthread_t t;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_create(&t, &detached, next, x);
    return x;
}

int main(int argc, char **argv) {
    pthread_t t;
    way = argc > 1 ? argv[1] : "";
    if (strcmp(way, "pipes") == 0) {
        char byte = 0;
        if (pipe(to) || pipe(back))
            return 1;
        pthread_create(&t, NULL, answers, NULL);
        do
            write(to[1], &byte, 1);
        while (read(back[0], &byte, 1) == 1);
        return 0;
    }
    if (strcmp(way, "chain") == 0) {
        next(NULL);
        pthread_mutex_lock(&lock);
        for (;;)
            pthread_cond_wait(&here, &lock);
    }
    pthread_create(&t, NULL, gives, NULL);
    if (strcmp(way, "sleeps") == 0)
        pthread_create(&t, NULL, sleeps, NULL);
    pthread_mutex_lock(&lock);
    for (;;) {
        turn = 1;
        pthread_cond_signal(&there);
        while (turn != 0 || turns == 350)
            pthread_cond_wait(&here, &lock);
    }
}
"#;

#[test]
fn and_nobody_is_left_to_wake_any() {
    // Long after a second: that it is reported at all shows that it was not left for the limit.
    let config = Config { limit: Duration::from_secs(600), ..Config::default() };
    at_once([("", 2), ("alone", 1), ("pipes", 2)], |(way, threads)| {
        let dir = Dir::new("usual-waits");
        let Some(path) = dir.build("turns", SOURCE) else { return };
        let program = Program::start(Command::new(path).arg(way));
        let mut watcher = Watcher::of(program.pid(), config.clone());
        let hang = watcher.hang();
        assert_eq!((hang.kind, hang.threads.len()), (Kind::Blocked, threads), "{hang:#?}");
        assert!(hang.why.contains("wake"), "{}", hang.why);
    });
}

#[test]
fn one_that_wakes_up_by_itself_may_wake_the_others() {
    at_once(["sleeps", "chain"], |way| {
        let dir = Dir::new("usual-waits-woken");
        let Some(path) = dir.build("turns", SOURCE) else { return };
        let program = Program::start(Command::new(path).arg(way));
        // Shorter than it rests between.
        let config = Config { limit: Duration::from_secs(600), ..Config::default() };
        let mut watcher = Watcher::of(program.pid(), config);
        watcher.run(Duration::from_secs(9));
        watcher.quiet();
    });
}
