/* Threads that wait for locks, one arrangement a run: locks MODE [FILE], or locks MODE
 * leave|join: what the first thread does then. With "between-" before it a mode's rwlocks are
 * process-shared. Prints "ready" once all threads run. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define N 8
static pthread_mutex_t m[N];
static pthread_rwlock_t own[2], *rw = own;
static pthread_barrier_t here, *all = &here;
static pthread_t threads[N], first;
static int count;

static void check(int e, const char *what)
{
    if (e) { fprintf(stderr, "%s: %s\n", what, strerror(e)); exit(1); }
}
static void start(int n, void *(*f)(void *))
{
    count = n;
    pthread_barrier_init(all, NULL, n + 1);
    for (long i = 0; i < n; i++) check(pthread_create(&threads[i], NULL, f, (void *)i), "pthread_create");
}
static void ready(void) { puts("ready"); fflush(stdout); }
static void forever(void) { for (;;) pause(); }
static void meet(void) { pthread_barrier_wait(all); }

/* Each holds its own mutex and wants the next one's. */
static void *ring(void *a)
{
    long i = (long)a;
    pthread_mutex_lock(&m[i]);
    meet();
    pthread_mutex_lock(&m[(i + 1) % count]);
    pause();
    return NULL;
}
static _Atomic int waiter;
static void *self(void *a)
{
    (void)a;
    waiter = gettid();
    meet();
    pthread_mutex_lock(&m[0]);
    pthread_mutex_lock(&m[0]);
    return NULL;
}
static void *timed(void *a)
{
    long i = (long)a;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += 1000;
    pthread_mutex_lock(&m[i]);
    meet();
    if (i == 0) pthread_mutex_timedlock(&m[1], &t);
    else pthread_mutex_lock(&m[0]);
    pause();
    return NULL;
}
static void *tries(void *a)
{
    long i = (long)a;
    pthread_mutex_lock(&m[i]);
    meet();
    while (pthread_mutex_trylock(&m[1 - i])) usleep(100);
    return NULL;
}
/* A writer of one lock wants to read the other, whose writer wants to write the first. */
static void *writers(void *a)
{
    long i = (long)a;
    pthread_rwlock_wrlock(&rw[i]);
    meet();
    if (i == 0) pthread_rwlock_rdlock(&rw[1]);
    else pthread_rwlock_wrlock(&rw[0]);
    pause();
    return NULL;
}
/* One writes and wants the mutex of the other, which wants to read. */
static void *writer_and_mutex(void *a)
{
    long i = (long)a;
    if (i == 0) pthread_rwlock_wrlock(&rw[0]);
    else pthread_mutex_lock(&m[0]);
    meet();
    if (i == 0) pthread_mutex_lock(&m[0]);
    else pthread_rwlock_rdlock(&rw[0]);
    pause();
    return NULL;
}
/* Healthy: one writes for a while, again and again, and the others read in between. */
static void *takes_turns(void *a)
{
    long i = (long)a;
    meet();
    for (;;) {
        if (i == 0) pthread_rwlock_wrlock(&rw[0]);
        else pthread_rwlock_rdlock(&rw[0]);
        usleep(i == 0 ? 200000 : 1000);
        pthread_rwlock_unlock(&rw[0]);
        usleep(10000);
    }
}
/* As `start`, with processes in place of threads, which share the rwlocks. */
static void start_processes(int n, void *(*f)(void *))
{
    pthread_barrierattr_t at;
    char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) { perror("mmap"); exit(1); }
    rw = (pthread_rwlock_t *)p;
    memcpy(rw, own, sizeof own);
    all = (pthread_barrier_t *)(p + 2048);
    pthread_barrierattr_init(&at);
    pthread_barrierattr_setpshared(&at, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(all, &at, n + 1);
    for (long i = 0; i < n; i++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            f((void *)i);
        }
}
/* One joins the other, which wants a mutex of the first. */
static void *joins(void *a)
{
    long i = (long)a;
    if (i == 0) pthread_mutex_lock(&m[0]);
    meet();
    if (i == 0) pthread_join(threads[1], NULL);
    else pthread_mutex_lock(&m[0]);
    return NULL;
}
/* Fights over the mutexes, always in the same order. */
static void *healthy(void *a)
{
    unsigned s = (unsigned)(long)a * 7919 + 1;
    meet();
    for (;;) {
        s = s * 1103515245 + 12345;
        int x = (s >> 16) % N, y = (s >> 20) % N;
        if (x > y) { int z = x; x = y; y = z; }
        pthread_mutex_lock(&m[x]);
        if (y != x) pthread_mutex_lock(&m[y]);
        if ((s >> 8) % 4 == 0) usleep((s >> 10) % 50);
        if (y != x) pthread_mutex_unlock(&m[y]);
        pthread_mutex_unlock(&m[x]);
    }
}
static void *takes_and_ends(void *a)
{
    (void)a;
    pthread_mutex_lock(&m[0]);
    meet();
    return NULL;
}
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t sem;
static void *one_of_each(void *a)
{
    long i = (long)a;
    meet();
    switch (i) {
    case 0: pthread_mutex_lock(&m[0]); pthread_cond_wait(&cond, &m[0]); break;
    case 1: sem_wait(&sem); break;
    case 2: pthread_rwlock_rdlock(&rw[0]); break;
    case 3: pthread_rwlock_wrlock(&rw[0]); break;
    case 4: pthread_join(first, NULL); break;
    case 5: pthread_mutex_lock(&m[1]); break;
    case 6: fputs("x", stderr); break;
    case 7: { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); t.tv_sec += 1000; pthread_mutex_timedlock(&m[1], &t); break; }
    }
    pause();
    return NULL;
}
/* Until a thread sleeps at this word. */
static void asleep(int tid, const void *at)
{
    char path[64], want[64], is[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    snprintf(want, sizeof want, "%d %p ", SYS_futex, at);
    for (;; usleep(1000)) {
        int fd = open(path, O_RDONLY);
        ssize_t n = read(fd, is, sizeof is - 1);
        close(fd);
        if (n > 0 && !strncmp(is, want, strlen(want))) return;
    }
}
/* Wants the second of two mutexes in a shared file, holding the first, or the other way round. */
static void shared(const char *file, int i)
{
    int fd = open(file, O_RDWR);
    pthread_mutex_t *s = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (s == MAP_FAILED) { perror(file); exit(1); }
    atomic_int *held = (atomic_int *)((char *)s + 4096);
    pthread_mutex_lock(&s[i]);
    atomic_fetch_add(held, 1);
    ready();
    while (atomic_load(held) < 2) usleep(1000);
    pthread_mutex_lock(&s[1 - i]);
}
static void make_shared(const char *file)
{
    int fd = open(file, O_RDWR | O_CREAT, 0600);
    if (ftruncate(fd, 8192)) perror(file);
    pthread_mutex_t *s = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pthread_mutexattr_t at;
    pthread_mutexattr_init(&at);
    pthread_mutexattr_setpshared(&at, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s[0], &at);
    pthread_mutex_init(&s[1], &at);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    pthread_mutexattr_t at;
    pthread_mutexattr_init(&at);
    if (!strcmp(mode, "pi")) pthread_mutexattr_setprotocol(&at, PTHREAD_PRIO_INHERIT);
    if (!strcmp(mode, "robust")) pthread_mutexattr_setrobust(&at, PTHREAD_MUTEX_ROBUST);
    if (!strcmp(mode, "recursive")) pthread_mutexattr_settype(&at, PTHREAD_MUTEX_RECURSIVE);
    for (int i = 0; i < N; i++) pthread_mutex_init(&m[i], &at);
    int between = !strncmp(mode, "between-", 8);
    if (between) mode += 8;
    pthread_rwlockattr_t rwat;
    pthread_rwlockattr_init(&rwat);
    if (between) pthread_rwlockattr_setpshared(&rwat, PTHREAD_PROCESS_SHARED);
    for (int i = 0; i < 2; i++) pthread_rwlock_init(&rw[i], &rwat);
    first = pthread_self();
    if (!strcmp(mode, "self")) start(1, self);
    else if (!strcmp(mode, "two") || !strcmp(mode, "pi") || !strcmp(mode, "robust") || !strcmp(mode, "recursive")) start(2, ring);
    else if (!strcmp(mode, "five")) start(5, ring);
    else if (!strcmp(mode, "rwlock")) start(2, writers);
    else if (!strcmp(mode, "rwlock-mutex")) start(2, writer_and_mutex);
    else if (!strcmp(mode, "processes")) start_processes(2, writers);
    else if (!strcmp(mode, "turns")) start_processes(3, takes_turns);
    else if (!strcmp(mode, "join")) start(2, joins);
    else if (!strcmp(mode, "timed")) start(2, timed);
    else if (!strcmp(mode, "try")) start(2, tries);
    else if (!strcmp(mode, "healthy")) start(8, healthy);
    else if (!strcmp(mode, "ended")) {
        start(1, takes_and_ends);
        meet();
        pthread_join(threads[0], NULL);
        ready();
        pthread_mutex_lock(&m[0]);
    } else if (!strcmp(mode, "lost")) {
        /* A free mutex, and a sleeper that nobody will wake. */
        ready();
        *(int *)&m[0] = 2;
        start(1, self);
        meet();
        asleep(waiter, &m[0]);
        *(volatile int *)&m[0] = 0;
        forever();
    } else if (!strcmp(mode, "each")) {
        sem_init(&sem, 0, 0);
        pthread_mutex_lock(&m[1]);
        pthread_rwlock_wrlock(&rw[0]);
        flockfile(stderr);
        start(8, one_of_each);
    } else if (!strcmp(mode, "make")) { make_shared(argv[2]); return 0; }
    else if (!strcmp(mode, "shared0")) { shared(argv[2], 0); return 0; }
    else if (!strcmp(mode, "shared1")) { shared(argv[2], 1); return 0; }
    else { fprintf(stderr, "unknown mode %s\n", mode); return 2; }
    meet();
    ready();
    if (argc > 2 && !strcmp(argv[2], "leave")) pthread_exit(NULL);
    if (argc > 2 && !strcmp(argv[2], "join")) pthread_join(threads[0], NULL);
    forever();
}
