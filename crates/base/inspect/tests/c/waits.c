/* Waits of one kind: waits KIND. Prints "ready" just before it waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void ready(void) { puts("ready"); fflush(stdout); }
static void forever(void) { for (;;) pause(); }
static void *idle(void *a) { forever(); return a; }

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    char byte;
    int p[2], s[2];
    if (pipe(p) || socketpair(AF_UNIX, SOCK_STREAM, 0, s)) return 1;
    if (!strcmp(kind, "pipe")) {
        /* A child holds the other end. */
        if (!fork()) { close(p[0]); forever(); }
        close(p[1]);
        ready();
        return (int)read(p[0], &byte, 1);
    }
    if (!strcmp(kind, "pipe-left")) {
        /* A child holds the other end, whose first thread has ended. */
        if (!fork()) {
            pthread_t t;
            close(p[0]);
            pthread_create(&t, NULL, idle, NULL);
            pthread_exit(NULL);
        }
        close(p[1]);
        ready();
        return (int)read(p[0], &byte, 1);
    }
    if (!strcmp(kind, "own-pipe")) { ready(); return (int)read(p[0], &byte, 1); }
    if (!strcmp(kind, "own-fifo") || !strcmp(kind, "own-fifo-removed")) {
        int f = mkfifo(argv[2], 0600) ? -1 : open(argv[2], O_RDWR);
        if (kind[8] && unlink(argv[2])) return 1;
        ready();
        return (int)read(f, &byte, 1);
    }
    if (!strcmp(kind, "full-pipe")) {
        char *block = calloc(1, 1 << 20);
        if (!fork()) { close(p[1]); forever(); }
        close(p[0]);
        ready();
        return (int)write(p[1], block, 1 << 20);
    }
    if (!strcmp(kind, "unix")) {
        if (!fork()) { close(s[0]); forever(); }
        close(s[1]);
        ready();
        return (int)recv(s[0], &byte, 1, 0);
    }
    if (!strcmp(kind, "tcp") || !strcmp(kind, "accept")) {
        int l = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof a;
        if (bind(l, (void *)&a, n) || listen(l, 1) || getsockname(l, (void *)&a, &n)) return 1;
        if (!strcmp(kind, "accept")) { ready(); return accept(l, NULL, NULL); }
        if (!fork()) { int c = accept(l, NULL, NULL); close(l); write(c, "x", 1); forever(); }
        int c = socket(AF_INET, SOCK_STREAM, 0);
        close(l);
        if (connect(c, (void *)&a, n) || read(c, &byte, 1) != 1) return 1;
        ready();
        return (int)read(c, &byte, 1);
    }
    if (!strcmp(kind, "flock") || !strcmp(kind, "fcntl")) {
        int posix = kind[1] == 'c', up[2];
        if (pipe(up)) return 1;
        struct flock lock = {.l_type = F_WRLCK};
        if (!fork()) {
            int f = open(argv[2], O_RDWR | O_CREAT, 0600);
            if (posix ? fcntl(f, F_SETLK, &lock) : flock(f, LOCK_EX)) _exit(1);
            write(up[1], "x", 1);
            forever();
        }
        read(up[0], &byte, 1);
        int f = open(argv[2], O_RDWR | O_CREAT, 0600);
        ready();
        return posix ? fcntl(f, F_SETLKW, &lock) : flock(f, LOCK_EX);
    }
    if (!strcmp(kind, "flock-left")) {
        /* The taker of the lock exits; a child of its has it from it, and one of that one's in
         * turn. */
        int up[2];
        if (pipe(up)) return 1;
        pid_t c = fork();
        if (!c) {
            int f = open(argv[2], O_RDWR | O_CREAT, 0600);
            if (flock(f, LOCK_EX)) _exit(1);
            if (fork()) _exit(0);
            if (fork()) write(up[1], "x", 1);
            forever();
        }
        waitpid(c, NULL, 0);
        read(up[0], &byte, 1);
        int f = open(argv[2], O_RDWR | O_CREAT, 0600);
        ready();
        return flock(f, LOCK_EX);
    }
    if (!strcmp(kind, "child")) {
        if (!fork()) forever();
        pid_t c = fork();
        if (!c) forever();
        ready();
        return waitpid(c, NULL, 0);
    }
    if (!strcmp(kind, "poll")) {
        struct pollfd f[3] = {{p[0], POLLIN, 0}, {s[0], POLLIN, 0}, {s[1], POLLIN, 0}};
        ready();
        return poll(f, 3, -1);
    }
    if (!strcmp(kind, "select")) {
        fd_set r;
        FD_ZERO(&r);
        FD_SET(p[0], &r);
        FD_SET(s[0], &r);
        struct timeval t = {1000, 0};
        ready();
        return select(64, &r, NULL, NULL, &t);
    }
    if (!strcmp(kind, "epoll")) {
        int e = epoll_create1(0);
        struct epoll_event ev = {.events = EPOLLIN};
        epoll_ctl(e, EPOLL_CTL_ADD, p[0], &ev);
        epoll_ctl(e, EPOLL_CTL_ADD, s[0], &ev);
        ready();
        return epoll_wait(e, &ev, 1, -1);
    }
    if (!strcmp(kind, "sleep")) { ready(); return (int)sleep(1000); }
    if (!strcmp(kind, "signal")) { ready(); return pause(); }
    if (!strcmp(kind, "event")) { ready(); return (int)read(eventfd(0, 0), &p, 8); }
    if (!strcmp(kind, "spin")) { ready(); for (;;) ; }
    return 2;
}
