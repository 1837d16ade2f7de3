//! A lock that keeps its holder and goes from hand to hand is no hang, however long each of many
//! waits for it; it is one once somebody keeps it.

use crate::common::{Dir, Program, Watcher, at_once};
use orbit_ahd::{Config, Kind};
use std::process::Command;
use std::time::Duration;

// Twelve workers hold the lock for 0.4 s each, asleep. "keep": after four seconds one of them keeps
// it. "flock", "file" (of an open file), "priority": another kind of lock.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { WORKERS = 12 };
static pthread_mutex_t lock;
static int turns, keep;

static void *works(void *x) {
    for (;;) {
        pthread_mutex_lock(&lock);
        usleep(400000);
        if (++turns == 10 && keep)
            for (;;)
                sleep(1000);
        pthread_mutex_unlock(&lock);
        usleep(20000);
    }
    return x;
}

int main(int argc, char **argv) {
    keep = !strcmp(argv[1], "keep");
    if (!strcmp(argv[1], "flock") || !strcmp(argv[1], "file")) {
        struct flock take = {.l_type = F_WRLCK}, give = {.l_type = F_UNLCK};
        for (int i = 0; i < WORKERS - 1; i++)
            if (fork() == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                break;
            }
        int file = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        for (;;) {
            if (argv[1][1] == 'l')
                flock(file, LOCK_EX);
            else
                fcntl(file, F_OFD_SETLKW, &take);
            usleep(400000);
            if (argv[1][1] == 'l')
                flock(file, LOCK_UN);
            else
                fcntl(file, F_OFD_SETLK, &give);
            usleep(20000);
        }
    }
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    if (!strcmp(argv[1], "priority"))
        pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&lock, &kind);
    pthread_t t;
    for (int i = 0; i < WORKERS - 1; i++)
        pthread_create(&t, NULL, works, NULL);
    works(NULL);
}
"#;

fn config() -> Config {
    Config { limit: Duration::from_secs(2), ..Config::default() }
}

#[test]
fn each_of_many_waits_long_and_gets_it() {
    at_once(["mutex", "priority", "flock", "file"], |way| {
        let dir = Dir::new("hand-to-hand");
        let Some(path) = dir.build("hands", SOURCE) else { return };
        let program = Program::start(Command::new(path).arg(way).arg(dir.0.join("lock")));
        let mut watcher = Watcher::of(program.pid(), config());
        watcher.run(Duration::from_secs(9));
        watcher.quiet();
    });
}

#[test]
fn until_one_keeps_it() {
    let dir = Dir::new("hand-kept");
    let Some(path) = dir.build("hands", SOURCE) else { return };
    let program = Program::start(Command::new(path).arg("keep"));
    let mut watcher = Watcher::of(program.pid(), config());
    let hang = watcher.hang();
    assert_eq!(hang.kind, Kind::Blocked, "{hang:#?}");
}
