// Hangs as public reports describe them, by name; the reports are listed in reports.txt.
#include "../recorded/mark.h"
#include <poll.h>

// A signal's handler formats the time while the interrupted code does.
static char line[64];
static void logs(int s) {
    time_t t = time(NULL);
    strftime(line, sizeof line, "%c", localtime(&t));
    (void)s;
}
static void handler_localtime(void) {
    signal(SIGALRM, logs);
    ms(2000);
    mark();
    ualarm(900, 300);
    for (time_t t = 0;; t++) logs(0);
}

// The pool's destructor sets its flag without the lock, between a worker's check and its wait.
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static volatile int ends, checked, jobs;
static void *worker(void *x) {
    for (;;) {
        pthread_mutex_lock(&m);
        while (!jobs) {
            if (ends) return x;
            checked = 1;
            if (jobs < 0 || getenv("SLOW_CHECK")) ms(30);
            pthread_cond_wait(&c, &m);
        }
        jobs--;
        pthread_mutex_unlock(&m);
        ms(2);
    }
}
static void pool_destructor(void) {
    setenv("SLOW_CHECK", "1", 1);
    pthread_t t;
    pthread_create(&t, NULL, worker, NULL);
    for (int i = 0; i < 40; i++) {
        pthread_mutex_lock(&m);
        jobs++;
        pthread_cond_signal(&c);
        pthread_mutex_unlock(&m);
        ms(60);
    }
    checked = 0;
    pthread_mutex_lock(&m);
    jobs++;
    pthread_cond_signal(&c);
    pthread_mutex_unlock(&m);
    while (!checked) ms(1);
    ends = 1;
    pthread_cond_broadcast(&c);
    mark();
    pthread_join(t, NULL);
}

// Three processes write to each other in a ring and none reads on.
static void all_write(void) {
    int p[3][2];
    for (int i = 0; i < 3; i++) pipe(p[i]);
    ms(2000);
    int me = fork() == 0 ? 1 : fork() == 0 ? 2 : 0;
    for (int i = 0; i < 3; i++) {
        if (i != me) close(p[i][1]);
        if (i != (me + 2) % 3) close(p[i][0]);
    }
    static char block[5000];
    if (me == 0) mark();
    for (;;) write(p[me][1], block, sizeof block);
}

// A client's thread polls a connection that the other side has closed, and never takes it out of its set.
static int to_poll;
static void *client(void *x) {
    int e = epoll_create1(0);
    struct epoll_event v = {.events = EPOLLIN}, got;
    epoll_ctl(e, EPOLL_CTL_ADD, to_poll, &v);
    for (char b;;) {
        if (epoll_wait(e, &got, 1, -1) == 1 && got.events & EPOLLIN && !(got.events & EPOLLHUP)) read(to_poll, &b, 1);
    }
    return x;
}
static void closed_peer(void) {
    int s[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, s);
    to_poll = s[0];
    pthread_t t;
    pthread_create(&t, NULL, client, NULL);
    for (int i = 0; i < 200; i++) {
        write(s[1], "x", 1);
        ms(20);
    }
    mark();
    close(s[1]);
    for (;;) ms(500);
}

int main(int n, char **a) {
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(a[n - 1], "handler_localtime")) handler_localtime();
    if (!strcmp(a[n - 1], "pool_destructor")) pool_destructor();
    if (!strcmp(a[n - 1], "all_write")) all_write();
    if (!strcmp(a[n - 1], "closed_peer")) closed_peer();
}
