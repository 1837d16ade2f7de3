// Processes that wait for each other, or seem to: rings WAY.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>
#include <poll.h>

static char much[4 << 20];
static int ways[8][2];
static volatile long got;

static int is(const char *way, const char *name) { return !strcmp(way, name); }

static void handle(int signal) { (void)signal; }

// The calls that block: each under a name of its own, for the stack.
__attribute__((noinline, noclone)) static char reads_here(int fd) {
    char c = 0;
    ssize_t n = read(fd, &c, 1);
    return n == 1 ? c : 0;
}
__attribute__((noinline, noclone)) static void writes_here(int fd) { got = write(fd, much, sizeof much); }
__attribute__((noinline, noclone)) static void waits_here(pid_t child) { got = waitpid(child, NULL, 0); }

// A child that ends with this process.
static pid_t child(void) {
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(0);
    }
    return pid;
}

static void *writes_in_thread(void *fd) {
    writes_here(*(int *)fd);
    return NULL;
}

// Sends a descriptor over a unix socket.
static void send_one(int by, int fd) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } with = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&with.head), &fd, sizeof fd);
    struct iovec one = {"x", 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &with, .msg_controllen = sizeof with};
    sendmsg(by, &message, 0);
}

// Two processes of which each reads what only the other writes, each after it has closed what it
// does not need.
static void two_readers(int a[2], int b[2]) {
    if (child() == 0) {
        close(a[1]), close(b[0]);
        reads_here(a[0]);
        _exit(0);
    }
    close(a[0]), close(b[1]);
    reads_here(b[0]);
}

int main(int count, char **argument) {
    const char *way = count > 1 ? argument[1] : "";
    for (int i = 0; i < 8; i++)
        if (pipe(ways[i])) return 1;
    int *a = ways[0], *b = ways[1], *c = ways[2], *quiet = ways[3], s[2], *sides = s;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, s)) return 1;

    // Hangs.
    if (is(way, "read")) two_readers(a, b);
    if (is(way, "write")) {
        if (child() == 0) {
            close(a[1]), close(b[0]);
            writes_here(b[1]);
            _exit(0);
        }
        close(a[0]), close(b[1]);
        writes_here(a[1]);
    }
    if (is(way, "socket-read") || is(way, "socket-write")) {
        int first = child() == 0;
        close(s[!first]);
        is(way, "socket-read") ? (void)reads_here(s[first]) : writes_here(s[first]);
    }
    if (is(way, "child")) {
        pid_t pid = child();
        if (pid == 0) {
            close(a[0]);
            writes_here(a[1]);
            _exit(0);
        }
        close(a[1]);
        waits_here(pid);
    }
    if (is(way, "thread")) {
        // As a queue of Python's does: a thread writes, and the process waits for that to end.
        pid_t pid = child();
        if (pid == 0) {
            pthread_t writer;
            pthread_create(&writer, NULL, writes_in_thread, &a[1]);
            pthread_join(writer, NULL);
            _exit(0);
        }
        waits_here(pid);
    }
    if (is(way, "three")) {
        // a -> b -> c -> a, and a fourth that waits for the third to end.
        pid_t pid = 0;
        int *from[] = {a, b, c}, *to[] = {b, c, a};
        for (int i = 0; i < 3; i++)
            if ((pid = child()) == 0) {
                for (int k = 0; k < 3; k++) {
                    if (from[k] != from[i]) close(from[k][0]);
                    if (from[k] != to[i]) close(from[k][1]);
                }
                reads_here(from[i][0]);
                _exit(0);
            }
        for (int k = 0; k < 3; k++) close(from[k][0]), close(from[k][1]);
        waits_here(pid);
    }
    if (is(way, "loop")) {
        // Requests and answers, until an answer does not come.
        if (child() == 0) {
            close(a[1]), close(b[0]);
            for (int i = 0;; i++) {
                reads_here(a[0]);
                if (i < 200 && write(b[1], "y", 1) != 1) _exit(1);
            }
        }
        close(a[0]), close(b[1]);
        for (;;) {
            if (write(a[1], "x", 1) != 1) return 1;
            reads_here(b[0]);
            usleep(10000);
        }
    }

    // None.
    if (is(way, "outside")) {
        // Whoever was let go holds an end, too, as long as this process lives.
        if (fork() == 0) {
            if (fork() == 0) {
                setsid();
                close(quiet[1]), close(a[0]), close(b[0]);
                reads_here(quiet[0]);
                _exit(0);
            }
            _exit(0);
        }
        wait(NULL);
        usleep(300000);
        if (child() == 0) {
            close(a[1]), close(b[0]), close(quiet[0]);
            reads_here(a[0]);
            _exit(0);
        }
        close(a[0]), close(b[1]), close(quiet[0]);
        reads_here(b[0]);
    }
    if (is(way, "workers")) {
        // The master waits for what comes from elsewhere.
        for (int i = 0; i < 3; i++)
            if (child() == 0) {
                close(a[1]);
                while (reads_here(a[0])) {
                }
                _exit(0);
            }
        close(a[0]);
        struct epoll_event event = {.events = EPOLLIN};
        int all = epoll_create1(0);
        epoll_ctl(all, EPOLL_CTL_ADD, quiet[0], &event);
        epoll_wait(all, &event, 1, -1);
    }
    if (is(way, "polls")) {
        if (child() == 0) {
            reads_here(a[0]);
            _exit(0);
        }
        struct pollfd one = {b[0], POLLIN, 0};
        poll(&one, 1, -1);
    }
    if (is(way, "sleeps")) {
        // It takes its time to answer.
        if (child() == 0)
            for (;;) {
                reads_here(a[0]);
                sleep(3);
                if (write(b[1], "y", 1) != 1) _exit(1);
            }
        for (;;) {
            if (write(a[1], "x", 1) != 1) return 1;
            reads_here(b[0]);
        }
    }
    if (is(way, "limit")) {
        struct timeval limit = {1000, 0};
        for (int i = 0; i < 2; i++) setsockopt(sides[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        int first = child() == 0;
        close(s[!first]);
        reads_here(s[first]);
    }
    if (is(way, "signal")) {
        signal(SIGUSR1, handle);
        two_readers(a, b);
    }
    if (is(way, "ends")) {
        // A child of its own that ends some time: its handler would continue.
        signal(SIGCHLD, handle);
        if (child() == 0) {
            sleep(1000);
            _exit(0);
        }
        two_readers(a, b);
    }
    if (is(way, "timer")) {
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGURG};
        struct itimerspec later = {.it_value = {1000, 0}};
        timer_create(CLOCK_MONOTONIC, &event, &timer);
        timer_settime(timer, 0, &later, NULL);
        two_readers(a, b);
    }
    if (is(way, "sent")) {
        // One more end is on its way to whoever asks for it.
        send_one(s[0], a[1]);
        two_readers(a, b);
    }
    if (is(way, "named")) {
        int one, two;
        char other[4096];
        snprintf(other, sizeof other, "%s2", argument[2]);
        if (mkfifo(argument[2], 0600) || mkfifo(other, 0600)) return 1;
        one = open(argument[2], O_RDWR), two = open(other, O_RDWR);
        if (child() == 0) {
            reads_here(one);
            _exit(0);
        }
        reads_here(two);
    }
    if (is(way, "terminal")) {
        // As a shell that waits for its pipeline does.
        int master = posix_openpt(O_RDWR | O_NOCTTY);
        grantpt(master), unlockpt(master);
        int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
        pid_t cat = child(), last;
        if (cat == 0) {
            reads_here(terminal);
            _exit(0);
        }
        if ((last = child()) == 0) {
            close(a[1]);
            reads_here(b[0]);
            _exit(0);
        }
        waits_here(last);
    }
    if (is(way, "stopped")) {
        pid_t pid = child();
        if (pid == 0) {
            raise(SIGSTOP);
            _exit(0);
        }
        waits_here(pid);
    }
    pause();
    return 0;
}
