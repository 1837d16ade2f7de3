// Threads in calls that give up when a thread is stopped, each with a time limit of some seconds;
// one goes in and out of such a call all the time. Prints "ready", and at the end a line a thread:
// its name, and how its call ended.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *const names[] = {"epoll", "socket", "semaphore", "signal", "poll", "sleep", "often"};
enum { COUNT = sizeof names / sizeof *names };
static char ends[COUNT][64];

static void note(int i, long value) {
    snprintf(ends[i], sizeof ends[i], "%s", value < 0 ? strerrorname_np(errno) : "done");
}

static void *wait_in(void *arg) {
    int i = (int)(long)arg;
    struct timespec three = {3, 0};
    struct timeval limit = {3, 0};
    struct epoll_event event;
    int pair[2];
    sigset_t set;
    pthread_setname_np(pthread_self(), names[i]);
    switch (i) {
    case 0:
        note(i, epoll_wait(epoll_create1(0), &event, 1, 3000));
        break;
    case 1:
        socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
        setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        note(i, recv(pair[0], &event, 1, 0));
        break;
    case 2: {
        int id = semget(IPC_PRIVATE, 1, 0600);
        struct sembuf take = {0, -1, 0};
        note(i, semtimedop(id, &take, 1, &three));
        int kept = errno;
        semctl(id, 0, IPC_RMID);
        errno = kept;
        break;
    }
    case 3:
        sigemptyset(&set);
        sigaddset(&set, SIGUSR2);
        note(i, sigtimedwait(&set, NULL, &three));
        break;
    case 4:
        note(i, poll(NULL, 0, 3000));
        break;
    case 5:
        note(i, nanosleep(&three, NULL));
        break;
    default: {
        int epoll = epoll_create1(0);
        long calls = 0, broken = 0;
        struct timespec begun, now;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        do {
            broken += epoll_wait(epoll, &event, 1, 1) < 0;
            calls++;
            // Some time in its own code, where it may be stopped.
            for (volatile int n = 0; n < 500000;) n = n + 1;
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while (now.tv_sec - begun.tv_sec < 3);
        snprintf(ends[i], sizeof ends[i], "%ld broken of %s", broken, calls > 100 ? "many" : "few");
    }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[COUNT];
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    for (long i = 0; i < COUNT; i++)
        if (pthread_create(&threads[i], NULL, wait_in, (void *)i)) return 3;
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < COUNT; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < COUNT; i++) printf("%s: %s\n", names[i], ends[i]);
    return 0;
}
