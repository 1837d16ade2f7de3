//! Waits that something unseen ends in its time: nothing is reported of one that writes to a slow
//! reader by `splice`, nor of a lock without owner while another thread is delayed by the machine.

use crate::common::{Dir, Program, Watcher, at_once};
use orbit_ahd::Config;
use std::process::Command;
use std::time::Duration;

// "splice": moves bytes by a pipe of its own to one whose reader takes four seconds. "disk": a
// reader of a lock waits, as for a disk, while a writer wants it: a thread that makes a process by
// vfork sleeps so until that has ended.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

static void *writes(void *x) {
    for (;;) {
        pthread_rwlock_wrlock(&lock);
        pthread_rwlock_unlock(&lock);
        usleep(10000);
    }
    return x;
}

int main(int argc, char **argv) {
    if (strcmp(argv[1], "splice") == 0) {
        int own[2], out[2];
        static char page[65536];
        if (pipe(own) || pipe(out))
            return 1;
        if (fork() == 0) {
            close(out[1]);
            close(own[0]);
            close(own[1]);
            for (;;) {
                sleep(4);
                if (read(out[0], page, sizeof page) <= 0)
                    _exit(0);
            }
        }
        close(out[0]);
        for (;;) {
            write(own[1], page, sizeof page);
            splice(own[0], NULL, out[1], NULL, sizeof page, 0);
        }
    }
    pthread_t t;
    pthread_create(&t, NULL, writes, NULL);
    usleep(300000);
    for (;;) {
        pthread_rwlock_rdlock(&lock);
        if (vfork() == 0) {
            sleep(6);
            _exit(0);
        }
        pthread_rwlock_unlock(&lock);
        usleep(200000);
    }
}
"#;

#[test]
fn is_no_hang() {
    at_once(["splice", "disk"], |way| {
        let dir = Dir::new("held-up-elsewhere");
        let Some(path) = dir.build("held", SOURCE) else { return };
        let program = Program::start(Command::new(path).arg(way));
        let config = Config { limit: Duration::from_secs(2), ..Config::default() };
        let mut watcher = Watcher::of(program.pid(), config);
        watcher.run(Duration::from_secs(9));
        watcher.quiet();
    });
}
