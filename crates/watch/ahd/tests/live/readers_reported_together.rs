//! The threads of one readers-writer lock are in one report, by the address of the lock.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Kind};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t both;

static void *upgrades(void *a) {
    pthread_rwlock_rdlock(&lock);
    pthread_barrier_wait(&both);
    pthread_rwlock_wrlock(&lock);
    return a;
}

int main(void) {
    pthread_t t;
    pthread_barrier_init(&both, NULL, 2);
    printf("%#lx\n", (unsigned long)&lock);
    fflush(stdout);
    pthread_create(&t, NULL, upgrades, NULL);
    pthread_create(&t, NULL, upgrades, NULL);
    for (;;) {
        pause();
    }
}
"#;

#[test]
fn two_readers_that_want_to_write() {
    let dir = Dir::new("readers-together");
    let Some(path) = dir.build("upgrades", SOURCE) else { return };
    let mut child = Command::new(path).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program");
    let mut lock = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut lock).expect("the lock's address");
    let program = Program(child);
    let limit = Duration::from_secs(2);
    let mut watcher = Watcher::of(program.pid(), Config { limit, ..Config::default() });
    let hang = watcher.hang();
    assert_eq!(hang.kind, Kind::Blocked, "{hang:#?}");
    assert!(hang.threads.iter().all(|t| t.does.contains(lock.trim())), "{hang:#?}");
    watcher.run(limit);
    assert_eq!(watcher.hangs().len(), 1, "one hang, reported once");
}
