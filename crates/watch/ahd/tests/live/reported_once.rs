//! A hang is reported once: taking its stacks does not make it resemble threads that continued,
//! and all threads that wait in it belong to it.

use crate::common::{Dir, Program, Watcher, functions};
use orbit_ahd::{Config, Event};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <unistd.h>
static pthread_mutex_t m[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static sem_t s[2];
static pthread_barrier_t both;
static void *ring(void *a) {
    long i = (long)a;
    pthread_mutex_lock(&m[i]);
    pthread_barrier_wait(&both);
    pthread_mutex_lock(&m[1 - i]);
    return a;
}
static void *semaphores(void *a) {
    long i = (long)a;
    sem_wait(&s[i]);
    pthread_barrier_wait(&both);
    sem_wait(&s[1 - i]);
    return a;
}
static void *reads(void *a) {
    int ends[2];
    char byte;
    pthread_mutex_lock(&m[0]);
    pthread_barrier_wait(&both);
    return pipe(ends) || read(ends[0], &byte, 1) ? a : 0;
}
static void *wants(void *a) {
    pthread_barrier_wait(&both);
    pthread_mutex_lock(&m[0]);
    return a;
}
static void *behind(void *a) {
    sleep(1);
    pthread_mutex_lock(&m[0]);
    return a;
}
static void two(void *(*f)(void *), void *(*g)(void *), pthread_t *t) {
    pthread_create(&t[0], 0, f, (void *)0);
    pthread_create(&t[1], 0, g, (void *)1);
}
int main(int argc, char **argv) {
    const char *way = argv[argc - 1];
    pthread_t t[2], last;
    pthread_barrier_init(&both, 0, 2);
    sem_init(&s[0], 0, 1);
    sem_init(&s[1], 0, 1);
    if (!strcmp(way, "self")) {
        pthread_mutex_lock(&m[0]);
        pthread_mutex_lock(&m[0]);
    }
    if (!strcmp(way, "semaphores")) two(semaphores, semaphores, t);
    else if (!strcmp(way, "pipe")) two(reads, wants, t);
    else two(ring, ring, t);
    if (!strcmp(way, "left")) pthread_exit(0);
    if (!strcmp(way, "behind")) for (int i = 0; i < 3; i++) pthread_create(&last, 0, behind, 0);
    pthread_join(t[0], 0);
    return 0;
}
"#;

/// Functions in the stack of the reported thread; none without a compiler.
fn reported_once(way: &str) -> Vec<String> {
    let dir = Dir::new(&format!("reported-once-{way}"));
    let Some(program) = dir.build("hangs", SOURCE) else {
        return Vec::new();
    };
    let program = Program::start(Command::new(&program).arg(way));
    let mut w = Watcher::of(program.pid(), Config { limit: Duration::from_secs(2), ..Config::default() });
    w.hang();
    // Past the limit: all that waits was judged by then.
    w.run(Duration::from_secs(6));
    assert_eq!(w.hangs().len(), 1, "{way}: {:#?}", w.hangs().iter().map(|h| &h.why).collect::<Vec<_>>());
    assert!(!w.events.iter().any(|e| matches!(e, Event::Recovered { .. })), "{way}: {:?}", w.events);
    functions(w.hangs()[0]).into_iter().map(str::to_owned).collect()
}

#[test]
fn a_thread_that_waits_for_itself() {
    reported_once("self");
}

#[test]
fn a_ring_while_another_thread_joins() {
    reported_once("ring");
}

#[test]
fn a_ring_after_the_first_thread_left() {
    reported_once("left");
}

#[test]
fn a_ring_with_others_behind_it() {
    reported_once("behind");
}

#[test]
fn threads_that_all_wait_for_semaphores() {
    reported_once("semaphores");
}

#[test]
fn a_lock_whose_holder_waits_at_a_pipe() {
    let names = reported_once("pipe");
    assert!(names.is_empty() || names.iter().any(|name| name == "reads"), "reported with its waiter: {names:?}");
}
