//! The first part of a hang, seen in one look with the short jobs before it, is not taken for what the thread usually does.

mod common;

use common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Event, Kind};
use std::process::Command;

const THREADS: usize = 7;

/// Threads with a job each millisecond, and one longer job that makes them suspects; one after the other spins until a signal says that it was told, and ends.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>
enum { THREADS = 7 };
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static double begin;
static __thread volatile sig_atomic_t told;
static void is_told(int signal) {
    told = signal;
}
static void *loop(void *nth) {
    struct itimerspec each = {{0, 1000000}, {0, 1000000}};
    struct epoll_event event = {.events = EPOLLIN};
    int epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    double hang = begin + 2.5 + 1.013 * (intptr_t)nth;
    double suspect = begin + 0.5 + 0.1 * (intptr_t)nth;
    uint64_t n;
    timerfd_settime(timer, 0, &each, 0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event);
    while (now() < hang) {
        double until;
        epoll_wait(epoll, &event, 1, -1);
        if (read(timer, &n, sizeof n) < 0) return 0;
        until = now() + 0.00005;
        if (now() > suspect) {
            until += 0.04;
            suspect = hang;
        }
        while (now() < until) { }
    }
    while (!told) { }
    return 0;
}
int main(void) {
    pthread_t threads[THREADS];
    struct sigaction act = {.sa_handler = is_told};
    sigaction(SIGUSR1, &act, 0);
    begin = now();
    for (intptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, loop, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    for (;;) pause();
}
"#;

#[test]
fn a_hang_does_not_raise_its_own_check_value() {
    let dir = Dir::new("own-beginning");
    let Some(program) = dir.build("jobs", SOURCE) else {
        return;
    };
    let program = Program::start(&mut Command::new(program));
    let config = Config::default();
    let floor = config.floor.as_nanos() as u64;
    let mut watcher = Watcher::of(program.pid(), config);
    for told in 0..THREADS {
        watcher.until("a hang of each thread", |all| all.iter().filter(|e| matches!(e, Event::Hang(_))).count() > told);
        // SAFETY: plain call with numbers, for a thread of the child started above, which handles the signal.
        unsafe { libc::syscall(libc::SYS_tgkill, program.pid(), watcher.hangs()[told].tid, libc::SIGUSR1) };
    }
    let mut checks: Vec<u64> = watcher.hangs().iter().filter(|h| h.kind == Kind::Busy).map(|h| h.check_value).collect();
    checks.sort_unstable();
    // The look may come right at the beginning of one; of the most it does not.
    assert_eq!((checks.len(), checks.get(THREADS / 2)), (THREADS, Some(&floor)), "{checks:?}");
}
