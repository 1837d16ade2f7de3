//! Waits that end once somebody has done what takes its time: nothing is reported of a lock whose
//! holder waits for a child that works or sleeps, nor of a main thread that another one will wake
//! when a time is over. A child that will never end is reported with the thread that waits for its
//! parent.

use crate::common::{Dir, Program, Watcher, at_once};
use orbit_ahd::{Config, Kind};
use std::process::Command;
use std::time::Duration;

// All but "timer": a lock is held while a child does this.
const SOURCE: &str = r#"
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t done;

static void *waits(void *x) {
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    return x;
}

static void *timer(void *x) {
    sleep(7);
    sem_post(&done);
    return x;
}

static void spin(int seconds) {
    for (time_t end = time(NULL) + seconds; time(NULL) < end;)
        ;
}

static void child(const char *does) {
    if (!strcmp(does, "makes others"))
        for (time_t end = time(NULL) + 7; time(NULL) < end;) {
            if (fork() == 0) {
                usleep(3000);
                _exit(0);
            }
            wait(NULL);
        }
    if (!strcmp(does, "has one that works") && fork() == 0)
        spin(7);
    else if (!strcmp(does, "has one that works"))
        wait(NULL);
    if (!strcmp(does, "sleeps"))
        sleep(7);
    if (!strcmp(does, "hangs")) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pthread_mutex_lock(&lock);
        for (;;)
            pause();
    }
    _exit(0);
}

int main(int argc, char **argv) {
    pthread_t t;
    const char *does = argv[1];
    if (!strcmp(does, "timer")) {
        for (int i = 0; i < 60; i++) {
            poll(NULL, 0, 50);
            for (volatile int n = 0; n < 1000000; n++)
                ;
        }
        pthread_create(&t, NULL, timer, NULL);
        sem_wait(&done);
        return 0;
    }
    pthread_mutex_lock(&lock);
    pthread_create(&t, NULL, waits, NULL);
    if (fork() == 0)
        child(does);
    wait(NULL);
    pthread_mutex_unlock(&lock);
    pthread_join(t, NULL);
    return 0;
}
"#;

fn watched(does: &str, time: Duration) -> Option<(Program, Watcher)> {
    let dir = Dir::new(&format!("in-its-time-{}", does.replace(' ', "-")));
    let path = dir.build("takes", SOURCE)?;
    let program = Program::start(Command::new(path).arg(does));
    let mut watcher = Watcher::of(program.pid(), Config { limit: Duration::from_secs(2), ..Config::default() });
    watcher.run(time);
    Some((program, watcher))
}

#[test]
fn is_no_hang() {
    at_once(["makes others", "has one that works", "sleeps", "timer"], |does| {
        let Some((_program, watcher)) = watched(does, Duration::from_secs(9)) else { return };
        println!("{does}");
        watcher.quiet();
    });
}

#[test]
fn but_a_child_that_never_ends_is() {
    let Some((program, mut watcher)) = watched("hangs", Duration::ZERO) else { return };
    let hang = watcher.hang();
    assert_eq!(hang.kind, Kind::Blocked);
    assert!(hang.threads.iter().any(|t| t.pid == program.pid()), "{hang:#?}");
    assert!(hang.why.contains("waits for a child to exit"), "{}", hang.why);
}
