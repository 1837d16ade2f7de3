// Loaded into a server by LD_PRELOAD: makes it hang at the N-th call of a function, in a given way.
// ORBIT_INJECT is FUNCTION:N:WAY; calls count from when the first byte of the file
// ORBIT_INJECT_GO is not 0. The moment is written to the file ORBIT_INJECT_AT, in nanoseconds of
// the monotonic clock.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char function[32], way[32];
static long nth;
static atomic_long calls;
static volatile char *go;
static atomic_int held;
static pthread_mutex_t locks[8];
static int members;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

__attribute__((constructor)) static void start(void) {
    const char *s = getenv("ORBIT_INJECT");
    if (s == NULL || sscanf(s, "%31[^:]:%ld:%31s", function, &nth, way) != 3) {
        nth = 0;
    }
    const char *path = getenv("ORBIT_INJECT_GO");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
    go = mapped == MAP_FAILED ? NULL : mapped;
    if (fd >= 0) {
        close(fd);
    }
}

static void *member(void *arg) {
    long i = (long)arg;
    pthread_mutex_lock(&locks[i]);
    atomic_fetch_add(&held, 1);
    while (atomic_load(&held) < members) {
        usleep(500);
    }
    pthread_mutex_lock(&locks[(i + 1) % members]);
    return NULL;
}

static void tell(void) {
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", now());
    const char *path = getenv("ORBIT_INJECT_AT");
    long fd = path == NULL ? -1 : syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd >= 0) {
        syscall(SYS_write, fd, text, (long)n);
        syscall(SYS_close, fd);
    }
}

__attribute__((noinline)) void injected_spin(void) {
    volatile unsigned long n = 0;
    for (;;) {
        n++;
    }
}

__attribute__((noinline)) void injected_block(void) {
    members = strcmp(way, "self") == 0 ? 1 : strcmp(way, "ring2") == 0 ? 2 : 5;
    for (int i = 0; i < members; i++) {
        pthread_mutex_init(&locks[i], NULL);
    }
    for (long i = 1; i < members; i++) {
        pthread_t t;
        pthread_create(&t, NULL, member, (void *)i);
    }
    member((void *)0);
}

__attribute__((noinline)) void injected_pipe(void) {
    int p[2];
    char c;
    if (pipe(p) == 0) {
        syscall(SYS_read, p[0], &c, 1L);
    }
}

static void pass(const char *name) {
    if (nth == 0 || strcmp(name, function) != 0 || go == NULL || *go == 0 || atomic_fetch_add(&calls, 1) + 1 != nth) {
        return;
    }
    tell();
    if (strcmp(way, "spin") == 0) {
        injected_spin();
    } else if (strcmp(way, "pipe") == 0) {
        injected_pipe();
    } else {
        injected_block();
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t read(int fd, void *to, size_t n) {
    static ssize_t (*real)(int, void *, size_t);
    real = real ? real : REAL(read);
    pass("read");
    return real(fd, to, n);
}

ssize_t write(int fd, const void *from, size_t n) {
    static ssize_t (*real)(int, const void *, size_t);
    real = real ? real : REAL(write);
    pass("write");
    return real(fd, from, n);
}

int epoll_wait(int fd, struct epoll_event *e, int n, int limit) {
    static int (*real)(int, struct epoll_event *, int, int);
    real = real ? real : REAL(epoll_wait);
    pass("epoll_wait");
    return real(fd, e, n, limit);
}
