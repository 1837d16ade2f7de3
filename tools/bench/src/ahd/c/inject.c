// Loaded into a server by LD_PRELOAD: when the bench says so, one thread hangs at the N-th call of
// one function, in a given way. Orders and answers go through a file, named by ORBIT_INJECT, that
// both map. Also pings the watchdog of WATCHDOG_USEC and NOTIFY_SOCKET from the main thread's loop,
// as a server would that systemd watches. As a Redis module: the command inject.pass.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

// The bench has the same in Rust.
struct control {
    atomic_int armed;   // written last by the bench; taken back by the thread that hangs
    int pid;            // the process that shall hang
    int side;           // 0: its main thread, 1: another one
    atomic_int left;    // calls to go
    char comm[16];      // how that thread's name begins
    char function[32];
    char way[16];
    atomic_long hung_at; // nanoseconds of the monotonic clock; written last by the thread that hangs
    int tid;
    int members;        // threads of a ring
    atomic_int tids[8];
};
static struct control *control;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long ping_each;
static struct sockaddr_un ping_to = {.sun_family = AF_UNIX};
static socklen_t ping_to_len;
static int ping_from = -1;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("ORBIT_INJECT");
    int fd = path == NULL ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) {
        return;
    }
    struct control *c = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    const char *to = getenv("NOTIFY_SOCKET"), *each = getenv("WATCHDOG_USEC");
    if (to != NULL && each != NULL && strlen(to) < sizeof ping_to.sun_path) {
        strcpy(ping_to.sun_path, to);
        ping_to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(to));
        ping_each = atol(each) * 1000 / 2;
    }
    control = c == MAP_FAILED ? NULL : c;
}

// At half the time the watchdog allows, as sd_watchdog_enabled(3) advises.
static void ping(void) {
    static long last;
    if (ping_each == 0 || now() - last < ping_each || syscall(SYS_gettid) != getpid() || control->pid != getpid()) {
        return;
    }
    last = now();
    if (ping_from < 0) {
        ping_from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    sendto(ping_from, "WATCHDOG=1", 10, 0, (struct sockaddr *)&ping_to, ping_to_len);
}

static void report(void) {
    atomic_store(&control->hung_at, now());
}

__attribute__((noinline)) void injected_loop(void) {
    volatile unsigned long n = 0;
    report();
    for (;;) {
        n++;
    }
}

static pthread_mutex_t locks[8];
static atomic_int held;

static void *member(void *arg) {
    long i = (long)arg;
    control->tids[i] = (int)syscall(SYS_gettid);
    pthread_mutex_lock(&locks[i]);
    atomic_fetch_add(&held, 1);
    while (atomic_load(&held) < control->members) {
        usleep(100);
    }
    if (i == 0) {
        report();
    }
    pthread_mutex_lock(&locks[(i + 1) % control->members]);
    return NULL;
}

__attribute__((noinline)) void injected_ring(int members) {
    control->members = members;
    for (int i = 0; i < members; i++) {
        pthread_mutex_init(&locks[i], NULL);
    }
    for (long i = 1; i < members; i++) {
        pthread_t t;
        pthread_create(&t, NULL, member, (void *)i);
    }
    member((void *)0);
}

// A signal given before anybody waited.
__attribute__((noinline)) void injected_signal(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    pthread_cond_signal(&cond);
    pthread_mutex_lock(&mutex);
    report();
    pthread_cond_wait(&cond, &mutex);
}

static void *frees_without_waking(void *arg) {
    usleep(20000);
    report();
    __atomic_store_n((int *)arg, 0, __ATOMIC_SEQ_CST);
    return NULL;
}

// A lock that was let go, but its waiter was not woken.
__attribute__((noinline)) void injected_wake(void) {
    pthread_t t;
    *(volatile int *)&locks[0] = 2;
    pthread_create(&t, NULL, frees_without_waking, &locks[0]);
    pthread_mutex_lock(&locks[0]);
}

// The writer has ended without a word, and the reader itself holds the writing end open, so that no
// end of file comes.
__attribute__((noinline)) void injected_pipe(void) {
    int p[2];
    char c;
    if (pipe(p) == 0) {
        if (fork() == 0) {
            _exit(0);
        }
        report();
        while (syscall(SYS_read, p[0], &c, 1L) < 0 && errno == EINTR) {
        }
    }
}

static void *ends_with_the_lock(void *arg) {
    pthread_mutex_lock(arg);
    return NULL;
}

// A lock whose holder has ended.
__attribute__((noinline)) void injected_dead(void) {
    pthread_t t;
    if (pthread_create(&t, NULL, ends_with_the_lock, &locks[0]) == 0) {
        pthread_join(t, NULL);
    }
    report();
    pthread_mutex_lock(&locks[0]);
}

static void hang(void) {
    char way[16];
    memcpy(way, control->way, sizeof way);
    control->tid = (int)syscall(SYS_gettid);
    if (strcmp(way, "loop") == 0) {
        injected_loop();
    } else if (strcmp(way, "self") == 0) {
        injected_ring(1);
    } else if (strcmp(way, "ring2") == 0) {
        injected_ring(2);
    } else if (strcmp(way, "ring5") == 0) {
        injected_ring(5);
    } else if (strcmp(way, "signal") == 0) {
        injected_signal();
    } else if (strcmp(way, "wake") == 0) {
        injected_wake();
    } else if (strcmp(way, "pipe") == 0) {
        injected_pipe();
    } else {
        injected_dead();
    }
}

static void pass(const char *name) {
    if (control == NULL || !atomic_load_explicit(&control->armed, memory_order_acquire)) {
        return;
    }
    int pid = getpid();
    if (pid != control->pid || (syscall(SYS_gettid) != pid) != control->side || strcmp(name, control->function) != 0) {
        return;
    }
    char comm[16] = "";
    if (control->comm[0] != 0 && (prctl(PR_GET_NAME, comm) != 0
        || strncmp(comm, control->comm, strlen(control->comm)) != 0)) {
        return;
    }
    if (atomic_fetch_sub(&control->left, 1) == 1) {
        atomic_store(&control->armed, 0);
        hang();
    }
}

#define WRAP(type, name, params, args)    \
    type name params {    \
        static type(*real) params;    \
        if (real == NULL) {    \
            real = (type(*) params)dlsym(RTLD_NEXT, #name);    \
        }    \
        pass(#name);    \
        return real args;    \
    }

#pragma GCC diagnostic ignored "-Wnonnull-compare"
WRAP(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n))
WRAP(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n))
WRAP(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n))
WRAP(ssize_t, recv, (int fd, void *to, size_t n, int flags), (fd, to, n, flags))
WRAP(ssize_t, pread64, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
WRAP(ssize_t, sendfile64, (int to, int from, off_t *at, size_t n), (to, from, at, n))
WRAP(int, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
WRAP(int, close, (int fd), (fd))
WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, getrusage, (__rusage_who_t who, struct rusage *r), (who, r))
WRAP(int, gettimeofday, (struct timeval * t, void *zone), (t, zone))
WRAP(int, strcoll, (const char *a, const char *b), (a, b))
WRAP(double, asin, (double x), (x))
WRAP(long double, strtold, (const char *text, char **end), (text, end))
WRAP(void, qsort, (void *base, size_t n, size_t size, int (*than)(const void *, const void *)), (base, n, size, than))
WRAP(void *, malloc, (size_t n), (n))
WRAP(int, posix_memalign, (void **to, size_t align, size_t n), (to, align, n))
WRAP(void, free, (void *p), (p))
WRAP(int, usleep, (useconds_t us), (us))
WRAP(int, clock_nanosleep, (clockid_t c, int flags, const struct timespec *t, struct timespec *rest),
    (c, flags, t, rest))

int open64(const char *path, int flags, ...) {
    static int (*real)(const char *, int, ...);
    if (real == NULL) {
        real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    }
    __builtin_va_list more;
    __builtin_va_start(more, flags);
    int mode = __builtin_va_arg(more, int);
    __builtin_va_end(more);
    pass("open64");
    return real(path, flags, mode);
}

int epoll_wait(int fd, struct epoll_event *e, int n, int limit) {
    static int (*real)(int, struct epoll_event *, int, int);
    if (real == NULL) {
        real = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    }
    if (control != NULL) {
        ping();
    }
    pass("epoll_wait");
    return real(fd, e, n, limit);
}

// The part of Redis' module interface that one command needs.
static int (*reply_null)(void *);

static int command(void *ctx, void **argv, int argc) {
    (void)argv;
    (void)argc;
    pass("command");
    return reply_null(ctx);
}

int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    (void)argv;
    (void)argc;
    int (*api)(const char *, void *) = (int (*)(const char *, void *))((void **)ctx)[0];
    void (*set_attributes)(void *, const char *, int, int);
    int (*create)(void *, const char *, int (*)(void *, void **, int), const char *, int, int, int);
    if (api("RedisModule_SetModuleAttribs", &set_attributes) != 0 || api("RedisModule_CreateCommand", &create) != 0 ||
        api("RedisModule_ReplyWithNull", &reply_null) != 0) {
        return 1;
    }
    set_attributes(ctx, "inject", 1, 1);
    return create(ctx, "inject.pass", command, "fast", 0, 0, 0);
}
