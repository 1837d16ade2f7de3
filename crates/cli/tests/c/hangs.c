// Programs that hang in one way each, after a healthy start. The first argument says which.
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void nap(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

static double cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static volatile unsigned long sink;

// Uses so many milliseconds of CPU.
static void work(double ms) {
    double end = cpu() + ms / 1e3;
    while (cpu() < end) {
        for (int i = 0; i < 50000; i++) {
            sink += (unsigned long)i;
        }
    }
}

static void say(const char *what) {
    printf("%s\n", what);
    fflush(stdout);
}

__attribute__((noinline)) void spin_here(void) {
    for (;;) {
        sink++;
    }
}

static volatile sig_atomic_t asked;

static void ask(int signal) {
    asked = signal;
}

// A loop on epoll with a timer of 10 ms, healthy: so many rounds, or until a signal asks.
static void event_loop(int rounds) {
    int epoll = epoll_create1(0);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec each = {{0, 10000000}, {0, 10000000}};
    timerfd_settime(timer, 0, &each, NULL);
    struct epoll_event e = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &e);
    for (int i = 0; i < rounds && !asked; i++) {
        while (epoll_wait(epoll, &e, 1, -1) != 1) {
        }
        unsigned long n;
        if (read(timer, &n, sizeof n) < 0) {
            perror("read");
        }
        work(1);
    }
}

// The same until SIGUSR1: whoever watches says when the loop is known.
static void until_asked(void) {
    signal(SIGUSR1, ask);
    event_loop(INT_MAX);
    asked = 0;
}

static pthread_mutex_t *locks;
static int ring;
static atomic_int held;

static void *member(void *arg) {
    int i = (int)(long)arg;
    for (int k = 0; k < 20; k++) {
        nap(5);
    }
    pthread_mutex_lock(&locks[i]);
    atomic_fetch_add(&held, 1);
    while (atomic_load(&held) < ring) {
        nap(1);
    }
    pthread_mutex_lock(&locks[(i + 1) % ring]);
    return NULL;
}

static void ring_of(int n) {
    ring = n;
    locks = calloc((size_t)n, sizeof *locks);
    pthread_t t[16];
    for (int i = 0; i < n; i++) {
        pthread_mutex_init(&locks[i], NULL);
    }
    for (int i = 0; i < n; i++) {
        pthread_create(&t[i], NULL, member, (void *)(long)i);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(t[i], NULL);
    }
}

struct shared {
    pthread_mutex_t lock[2];
    atomic_int held;
};

// Two processes: each holds one lock of a shared mapping and wants the other's.
static void ring_of_processes(void) {
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->lock[0], &a);
    pthread_mutex_init(&s->lock[1], &a);
    pid_t child = fork();
    int me = child == 0;
    for (int k = 0; k < 60; k++) {
        nap(5);
    }
    pthread_mutex_lock(&s->lock[me]);
    atomic_fetch_add(&s->held, 1);
    while (atomic_load(&s->held) < 2) {
        nap(1);
    }
    pthread_mutex_lock(&s->lock[1 - me]);
    if (child > 0) {
        waitpid(child, NULL, 0);
    }
}

// Reads from a pipe whose writer has died while this process itself still holds the other end.
static void dead_peer(void) {
    int p[2];
    if (pipe(p) != 0) {
        exit(2);
    }
    pid_t child = fork();
    if (child == 0) {
        nap(200);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    char c;
    say("hangs now");
    if (read(p[0], &c, 1) < 0) {
        perror("read");
    }
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

static void *consumer(void *arg) {
    pthread_mutex_lock(&mutex);
    // The signal was given before anybody waited.
    pthread_cond_wait(&cond, &mutex);
    pthread_mutex_unlock(&mutex);
    return arg;
}

static void lost_wakeup(void) {
    pthread_t t;
    pthread_cond_signal(&cond);
    nap(200);
    pthread_create(&t, NULL, consumer, NULL);
    say("hangs now");
    pthread_join(t, NULL);
}

static void *holder(void *arg) {
    pthread_mutex_lock(&mutex);
    nap(100000);
    pthread_mutex_unlock(&mutex);
    return arg;
}

// A lock that is held for too long by a thread that sleeps.
static void long_hold(void) {
    pthread_t t;
    pthread_create(&t, NULL, holder, NULL);
    nap(200);
    say("hangs now");
    pthread_mutex_lock(&mutex);
}

// Spins until a file is there, then continues.
static void recovers(const char *file) {
    until_asked();
    say("hangs now");
    while (access(file, F_OK) != 0) {
        work(50);
    }
    event_loop(500);
}

// Never waits.
static void *burner(void *arg) {
    for (;;) {
        sink++;
    }
    return arg;
}

// Healthy: an event loop that is busy four fifths of the time, a pool of workers that contend for a
// lock, a thread that never waits.
static void *worker(void *arg) {
    for (;;) {
        pthread_mutex_lock(&mutex);
        work(0.2);
        pthread_mutex_unlock(&mutex);
        nap(2);
    }
    return arg;
}

static void healthy(double seconds) {
    pthread_t t;
    for (int i = 0; i < 4; i++) {
        pthread_create(&t, NULL, worker, NULL);
    }
    pthread_create(&t, NULL, burner, NULL);
    event_loop((int)(seconds * 100));
}

// Healthy until a signal asks for its end, which it does not reach.
static void hangs_while_ending(void) {
    signal(SIGTERM, ask);
    signal(SIGINT, ask);
    signal(SIGHUP, ask);
    while (!asked) {
        nap(5);
    }
    ring_of(2);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    if (strcmp(how, "spin") == 0) {
        until_asked();
        say("hangs now");
        spin_here();
    } else if (strcmp(how, "self") == 0) {
        event_loop(20);
        pthread_mutex_lock(&mutex);
        say("hangs now");
        pthread_mutex_lock(&mutex);
    } else if (strcmp(how, "ring2") == 0) {
        ring_of(2);
    } else if (strcmp(how, "ending") == 0) {
        hangs_while_ending();
    } else if (strcmp(how, "ring5") == 0) {
        ring_of(5);
    } else if (strcmp(how, "processes") == 0) {
        ring_of_processes();
    } else if (strcmp(how, "pipe") == 0) {
        dead_peer();
    } else if (strcmp(how, "lost") == 0) {
        lost_wakeup();
    } else if (strcmp(how, "hold") == 0) {
        long_hold();
    } else if (strcmp(how, "recovers") == 0) {
        recovers(argc > 2 ? argv[2] : "/");
    } else if (strcmp(how, "healthy") == 0) {
        healthy(argc > 2 ? atof(argv[2]) : 2);
    } else if (strcmp(how, "loop") == 0) {
        say("runs now");
        event_loop((int)((argc > 2 ? atof(argv[2]) : 2) * 100));
    } else {
        fprintf(stderr, "hangs: unknown way `%s`\n", how);
        return 2;
    }
    return 0;
}
