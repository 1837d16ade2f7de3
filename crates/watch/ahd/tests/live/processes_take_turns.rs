//! Processes that take turns at their work, by a lock on a file that a thread of theirs holds or by
//! a semaphore in memory that they share, wait for their turn as long as there is none.

use crate::common::{Dir, Program, Watcher, at_once};
use orbit_ahd::Config;
use std::process::Command;
use std::time::Duration;

// "file": a thread of each takes the lock and waits for work; the main threads read a pipe.
// "semaphore": its holder reads the pipe that work comes by.
const SOURCE: &str = r#"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char *path;
static int work[2], orders[2];
static sem_t *turn;

static void *listens(void *x) {
    int lock = open(path, O_RDWR | O_CREAT, 0600);
    struct pollfd in = { work[0], POLLIN, 0 };
    for (;;) {
        flock(lock, LOCK_EX);
        poll(&in, 1, -1);
        flock(lock, LOCK_UN);
    }
    return x;
}

static void takes_turns(void) {
    char byte;
    for (;;) {
        sem_wait(turn);
        (void)!read(work[0], &byte, 1);
        sem_post(turn);
        for (volatile int n = 0; n < 3000000; n++)
            ;
        usleep(20000);
    }
}

int main(int argc, char **argv) {
    char byte;
    path = argv[2];
    turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc != 3 || pipe(work) || pipe(orders) || sem_init(turn, 1, 1))
        return 1;
    for (int i = 0; i < 3; i++) {
        pthread_t t;
        if (fork() != 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!strcmp(argv[1], "semaphore"))
            takes_turns();
        pthread_create(&t, NULL, listens, NULL);
        (void)!read(orders[0], &byte, 1);
    }
    for (int i = 0; i < 200 && strcmp(argv[1], "file"); i++) {
        (void)!write(work[1], "x", 1);
        usleep(10000);
    }
    for (;;)
        pause();
}
"#;

#[test]
fn is_no_hang() {
    at_once(["file", "semaphore"], |way| {
        let dir = Dir::new(&format!("turns-{way}"));
        let Some(path) = dir.build("turns", SOURCE) else { return };
        let program = Program::start(Command::new(path).arg(way).arg(dir.0.join("lock")));
        let config = Config { limit: Duration::from_secs(2), ..Config::default() };
        let mut watcher = Watcher::of(program.pid(), config);
        watcher.run(Duration::from_secs(9));
        // With this limit a turn that a loaded machine delays may be a guess.
        watcher.quiet();
    });
}
