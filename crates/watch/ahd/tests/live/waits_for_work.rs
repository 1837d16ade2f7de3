//! A lock may be held for as long as there is no work: a thread that waits for such a lock is not
//! reported. A thread that holds one while it waits for something else is.

use crate::common::{Dir, Program, Watcher};
use orbit_ahd::{Config, Kind};
use orbit_inspect::Sure;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1);

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, *turn = &mutex;
static int listener;

static void *leads_or_follows(void *a) {
    for (;;) {
        pthread_mutex_lock(turn);
        int client = accept(listener, NULL, NULL);
        pthread_mutex_unlock(turn);
        if (client >= 0) close(client);
    }
    return a;
}
static void *cleans_up_at_the_end(void *a) {
    pthread_mutex_lock(&mutex);
    return a;
}
static void *works_with_the_lock_now_and_then(void *a) {
    for (int round = 0; round < 150; round++) usleep(20000);
    pthread_mutex_lock(&mutex);
    return a;
}
static void prefork(void) {
    pthread_mutexattr_t at;
    turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_init(&at);
    pthread_mutexattr_setpshared(&at, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&at, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(turn, &at);
    for (int i = 0; i < 3; i++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            leads_or_follows(NULL);
        }
}
static void work(double ms) {
    struct timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    while ((double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6 < ms);
}
// Three seconds with little to do, then so much work every 20 ms.
static void event_loop(double ms) {
    int epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec each = {{0, 20000000}, {0, 20000000}};
    struct epoll_event e = {.events = EPOLLIN};
    uint64_t n;
    timerfd_settime(timer, 0, &each, NULL);
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &e);
    for (int round = 0;; round++)
        if (epoll_wait(epoll, &e, 1, -1) == 1 && read(timer, &n, sizeof n) > 0) work(round < 150 ? 0.1 : ms);
}
// A child holds the other end and waits for work itself.
static void from_a_pipe(void) {
    int ends[2];
    char byte;
    if (pipe(ends)) exit(3);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    close(ends[1]);
    if (read(ends[0], &byte, 1) < 0) exit(3);
}

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "";
    int ends[2], got;
    char byte;
    pthread_t t;
    fd_set set;
    sigset_t signals;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 10)) return 3;
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    struct pollfd p = {.fd = listener, .events = POLLIN};
    FD_ZERO(&set);
    FD_SET(listener, &set);
    sigemptyset(&signals);
    if (!strcmp(way, "leader")) {
        for (int i = 0; i < 4; i++) pthread_create(&t, NULL, leads_or_follows, NULL);
        for (;;) pause();
    }
    if (!strcmp(way, "prefork")) {
        prefork();
        for (;;) pause();
    }
    pthread_mutex_lock(&mutex);
    int forgets = !strcmp(way, "forgets");
    pthread_create(&t, NULL, forgets ? works_with_the_lock_now_and_then : cleans_up_at_the_end, NULL);
    if (forgets) event_loop(0.1);
    if (!strcmp(way, "epoll")) event_loop(0.1);
    else if (!strcmp(way, "busy-epoll")) event_loop(14);
    else if (!strcmp(way, "accept")) accept(listener, NULL, NULL);
    else if (!strcmp(way, "poll")) poll(&p, 1, -1);
    else if (!strcmp(way, "select")) select(listener + 1, &set, NULL, NULL, NULL);
    else if (!strcmp(way, "pause")) pause();
    else if (!strcmp(way, "sigwait")) sigaddset(&signals, SIGUSR1), sigwait(&signals, &got);
    else if (!strcmp(way, "sigsuspend")) sigsuspend(&signals);
    else if (!strcmp(way, "recv")) recv(ends[0], &byte, 1, 0);
    else if (!strcmp(way, "pipe")) from_a_pipe();
    else if (!strcmp(way, "sleep")) sleep(1000);
    else if (!strcmp(way, "nap")) poll(NULL, 0, 1000000);
    return 3;
}
"#;

fn watch(program: &Program) -> Watcher {
    Watcher::of(program.pid(), Config { limit: LIMIT, ..Config::default() })
}

#[test]
fn a_holder_that_waits_for_work() {
    let dir = Dir::new("work");
    let Some(holders) = dir.build("holders", SOURCE) else { return };
    let ways = ["leader", "prefork", "epoll", "accept", "poll", "select", "pause", "sigwait", "sigsuspend", "pipe"];
    let programs = ways.map(|way| (way, Program::start(Command::new(&holders).arg(way))));
    std::thread::scope(|s| {
        for (way, program) in &programs {
            s.spawn(move || {
                let mut watcher = watch(program);
                watcher.run(LIMIT * 4);
                println!("{way}");
                watcher.quiet();
            });
        }
    });
}

#[test]
fn a_holder_that_has_much_work() {
    let dir = Dir::new("work-much");
    let Some(holders) = dir.build("holders", SOURCE) else { return };
    let program = Program::start(Command::new(&holders).arg("busy-epoll"));
    let mut watcher = watch(&program);
    // It has used the limit's worth of CPU several times over, but gets back to its loop.
    watcher.run(LIMIT * 12);
    watcher.quiet();
}

#[test]
fn a_holder_that_waits_for_something_else() {
    let dir = Dir::new("work-else");
    let Some(holders) = dir.build("holders", SOURCE) else { return };
    let ways = ["recv", "sleep", "nap"];
    let programs = ways.map(|way| (way, Program::start(Command::new(&holders).arg(way))));
    std::thread::scope(|s| {
        for (way, program) in &programs {
            s.spawn(move || {
                let mut watcher = watch(program);
                let hang = watcher.hang();
                // Nobody knows that the holder will never give it back.
                assert!(hang.kind == Kind::Blocked && hang.sure <= Sure::Likely, "{way}: {hang:#?}");
                assert!(hang.why.contains("held by thread"), "{way}: {}", hang.why);
            });
        }
    });
}
