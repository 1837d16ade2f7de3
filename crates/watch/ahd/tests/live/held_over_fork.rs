//! A lock that stood held in the parent when a process was made: said so, and in a child of `vfork`
//! it is the child's own.

use crate::common::{Dir, Program, Watcher, at_once};
use orbit_ahd::{Config, Hang, Kind};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t held;

static void *holds(void *a) {
    pthread_mutex_lock(&mutex);
    pthread_rwlock_wrlock(&rwlock);
    pthread_barrier_wait(&held);
    for (;;) {
        pause();
    }
    return a;
}

static void twice(void) {
    pthread_mutex_lock(&mutex);
    pthread_mutex_lock(&mutex);
}

static void *waits(void *a) {
    pthread_mutex_lock(&mutex);
    return a;
}

// The lock is held by whoever forks: its copy gives it back after so many seconds.
static void copied(unsigned seconds) {
    pthread_t t;
    pthread_mutex_lock(&mutex);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pthread_create(&t, NULL, waits, NULL);
        sleep(seconds);
        pthread_mutex_unlock(&mutex);
        pthread_join(t, NULL);
    }
    for (;;) {
        pause();
    }
}

// The same, by a thread that ends once it has made the child.
static void *forks(void *seconds) {
    pthread_t t;
    pthread_mutex_lock(&mutex);
    if (fork() == 0) {
        pthread_create(&t, NULL, waits, NULL);
        sleep((unsigned)(long)seconds);
        pthread_mutex_unlock(&mutex);
        pthread_join(t, NULL);
        _exit(0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t t;
    if (argc > 2 && !strcmp(argv[1], "ended")) {
        pthread_create(&t, NULL, forks, (void *)(long)atoi(argv[2]));
        pthread_join(t, NULL);
        for (;;) {
            pause();
        }
    }
    if (argc > 1 && !strcmp(argv[1], "copied")) {
        copied(argc > 2 ? atoi(argv[2]) : 0);
    }
    if (argc > 1 && !strcmp(argv[1], "vfork")) {
        if (vfork() == 0) {
            twice();
        }
        return 0;
    }
    pthread_barrier_init(&held, NULL, 2);
    pthread_create(&t, NULL, holds, NULL);
    pthread_barrier_wait(&held);
    if (fork() == 0) {
        return argc > 1 && !strcmp(argv[1], "rwlock") ? pthread_rwlock_rdlock(&rwlock) : pthread_mutex_lock(&mutex);
    }
    for (;;) {
        pause();
    }
}
"#;

fn is_reported(name: &str, way: &str, check: impl Fn(i32, &Hang)) {
    let dir = Dir::new(name);
    let Some(path) = dir.build("forked", SOURCE) else { return };
    let program = Program::start(Command::new(path).arg(way));
    let mut watcher = Watcher::of(program.pid(), Config { limit: Duration::from_secs(600), ..Config::default() });
    let hang = watcher.hang();
    // SAFETY: plain call with numbers; it hangs, and its parent collects no child.
    unsafe { libc::kill(hang.pid, libc::SIGKILL) };
    check(program.pid(), hang);
}

#[test]
fn of_a_thread_of_the_parent() {
    is_reported("held-fork", "mutex", |parent, hang| {
        assert!(hang.pid != parent && hang.kind == Kind::Blocked, "{hang:#?}");
        let forked = "held when the process was forked from its own";
        assert!(hang.why.contains(forked) && !hang.why.contains("has ended"), "{}", hang.why);
    });
}

#[test]
fn by_the_thread_that_made_the_child() {
    let dir = Dir::new("held-copied");
    let Some(path) = dir.build("forked", SOURCE) else { return };
    at_once(["copied", "ended"], |way| {
        let program = Program::start(Command::new(&path).args([way, "3"]));
        let limit = Duration::from_secs(5);
        let mut watcher = Watcher::of(program.pid(), Config { limit, ..Config::default() });
        watcher.run(Duration::from_secs(4));
        assert!(watcher.hangs().is_empty(), "{way}: its copy gave the lock back");
    });
}
