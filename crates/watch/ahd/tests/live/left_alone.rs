//! Threads that are left alone by processes that have ended: with the lock they held, in a ring
//! that was reported, at a pipe they used to fill.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Event};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t *mutex;

static int child(void) {
    int pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return pid;
}

// The child ends with the lock; nobody waits for it.
static void holder_ends(void) {
    if (child() == 0) {
        pthread_mutex_lock(&mutex[0]);
        _exit(0);
    }
    siginfo_t ended;
    waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT);
    pthread_mutex_lock(&mutex[0]);
}

// Each has a lock and wants the next one's; `reaped`: somebody waits for those that are killed.
static void ring(int members, int reaped) {
    pthread_barrier_t *met = (void *)(mutex + 16);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(met, &shared, members);
    for (int n = 0; n < members; n++) {
        if (child() == 0) {
            pthread_mutex_lock(&mutex[n]);
            pthread_barrier_wait(met);
            pthread_mutex_lock(&mutex[(n + 1) % members]);
            _exit(0);
        }
    }
    while (reaped && wait(NULL) > 0) {
    }
    for (;;) {
        pause();
    }
}

// Reads what the child writes, a byte at a time, and continues when that has ended: it has kept the
// writing end.
static void pipe_used_to_be_filled(void) {
    int fd[2];
    char byte;
    if (pipe(fd)) {
        return;
    }
    if (child() == 0) {
        for (int n = 0; n < 30; n++) {
            usleep(50000);
            if (write(fd[1], "x", 1) != 1) {
                _exit(1);
            }
        }
        _exit(0);
    }
    while (read(fd[0], &byte, 1) == 1) {
    }
}

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "";
    mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    for (int n = 0; n < 16; n++) {
        pthread_mutex_init(&mutex[n], &shared);
    }
    if (!strcmp(way, "holder-ends")) {
        holder_ends();
    } else if (!strcmp(way, "ring")) {
        ring(atoi(argv[2]), !strcmp(argv[3], "reaped"));
    } else {
        pipe_used_to_be_filled();
    }
    return 0;
}
"#;

fn start(name: &str, way: &[&str], limit: Duration) -> Option<(Dir, Program, Watcher)> {
    let dir = Dir::new(name);
    let program = Program::start(Command::new(dir.build("left", SOURCE)?).args(way));
    let watcher = Watcher::of(program.pid(), Config { limit, ..Config::default() });
    Some((dir, program, watcher))
}

#[test]
fn with_a_lock() {
    let Some((_dir, program, mut watcher)) = start("left-lock", &["holder-ends"], Duration::from_secs(600)) else {
        return;
    };
    let hang = watcher.hang();
    assert!(hang.pid == program.pid() && hang.why.contains("has ended"), "{hang:#?}");
}

#[test]
fn at_a_pipe_that_was_read_often() {
    let Some((_dir, program, mut watcher)) = start("left-pipe", &["pipe"], Duration::from_secs(600)) else { return };
    let hang = watcher.hang();
    assert!(
        hang.pid == program.pid() && hang.why.contains("waits for input at descriptor 3: nobody else can end that"),
        "{hang:#?}"
    );
}

#[test]
fn of_a_ring() {
    let Some((_dir, _program, mut watcher)) = start("left-ring", &["ring", "3", "reaped"], Duration::from_secs(3))
    else {
        return;
    };
    let first = watcher.hang();
    assert_eq!(first.cycle.len(), 3, "{first:#?}");
    let killed = first.pid;
    // SAFETY: plain call with numbers; it hangs, and only its parent may wait for it.
    unsafe { libc::kill(killed, libc::SIGKILL) };
    watcher.until("its end", |all| all.iter().any(|e| matches!(e, Event::Left { pid } if *pid == killed)));
    watcher.run(Duration::from_secs(5));
    // The remaining threads are part of the report that was made.
    assert_eq!(watcher.hangs().len(), 1, "{:#?}", watcher.hangs());
}
