/* Locks that go from hand to hand, and words with the value of free ones: handed MODE [LOCK].
 * LOCK is robust (glibc's), musl or musl-recursive: musl's words and calls, for there need be no
 * musl here. Prints "ready" once all is as it should be; the threads' names say what they do. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAITERS 0x80000000u
#define WRITTEN 0x3fffffffu
#define READERS 0x40000000u

/* musl's pthread_mutex_t. */
struct musl { int type; unsigned lock; int waiters, unused[2], count; void *prev, *next; };
/* A waiter of musl's condition variable, on its stack. */
struct node { struct node *prev, *next; int state, barrier; int *notify; };

static struct { int zero[4]; union { pthread_mutex_t glibc; struct musl musl; } u; int behind[16]; } lock;
static pthread_mutex_t second = PTHREAD_MUTEX_INITIALIZER;
static int is_musl;
static _Atomic int ids[3], taken;
static unsigned pair[2];
static unsigned *word;

static void named(const char *name) { prctl(PR_SET_NAME, name); }
static void ready(void) { puts("ready"); fflush(stdout); }
static void forever(void) { for (;;) pause(); }
static long futex(void *at, int op, unsigned value, void *to)
{
    return syscall(SYS_futex, at, op, value, NULL, to, ~0u);
}

static void musl_lock(struct musl *m)
{
    unsigned me = m->type & 3 ? (unsigned)gettid() : EBUSY, old = 0;
    while (!__atomic_compare_exchange_n(&m->lock, &old, me, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        unsigned sees = old | WAITERS;
        __atomic_add_fetch(&m->waiters, 1, __ATOMIC_SEQ_CST);
        __atomic_compare_exchange_n(&m->lock, &old, sees, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        futex(&m->lock, FUTEX_WAIT_PRIVATE, sees, NULL);
        __atomic_sub_fetch(&m->waiters, 1, __ATOMIC_SEQ_CST);
        old = 0;
    }
    if (m->type & 3) m->prev = m->next = &m->next;
}
static void musl_unlock(struct musl *m)
{
    int wanted = m->waiters;
    unsigned old = __atomic_exchange_n(&m->lock, 0, __ATOMIC_SEQ_CST);
    if (wanted || old & WAITERS) futex(&m->lock, FUTEX_WAKE_PRIVATE, 1, NULL);
}
static void take(void) { if (is_musl) musl_lock(&lock.u.musl); else pthread_mutex_lock(&lock.u.glibc); }
static void give(void) { if (is_musl) musl_unlock(&lock.u.musl); else pthread_mutex_unlock(&lock.u.glibc); }

/* Until a thread (of a process) sleeps at this word. */
static void asleep(int pid, int tid, const void *at)
{
    char path[64], want[64], is[256];
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", pid, tid);
    snprintf(want, sizeof want, "%d %p ", SYS_futex, at);
    for (;; usleep(1000)) {
        int fd = open(path, O_RDONLY);
        ssize_t n = read(fd, is, sizeof is - 1);
        close(fd);
        if (n > 0 && !strncmp(is, want, strlen(want))) return;
    }
}

/* The first and the second that come after the holder. */
static void *comes(void *a)
{
    long i = (long)a;
    if (i == 2) pthread_mutex_lock(&second);
    named(i == 1 ? "holder" : "waiter");
    ids[i] = gettid();
    take();
    taken = 1;
    forever();
    return NULL;
}
static void *waits(void *a)
{
    named("waiter");
    ids[1] = gettid();
    if (a) futex(word, *(int *)a, pair[0], NULL);
    else take();
    forever();
    return NULL;
}
/* The thread that runs this, once it sleeps at the word. */
static void start(void *(*f)(void *), void *a, int i)
{
    pthread_t t;
    if (pthread_create(&t, NULL, f, a)) exit(3);
    while (!ids[i]) usleep(1000);
    asleep(getpid(), ids[i], word);
}
static void *broadcast(void *a)
{
    struct node *node = a;
    named("waiter");
    ids[1] = gettid();
    futex(&node->barrier, FUTEX_WAIT_PRIVATE, 2, NULL);
    forever();
    return NULL;
}

/* Two processes and their mutex. The one that gives it away is stopped before it wakes anyone;
 * once it continues, it does not. Or it ends and has the mutex. */
static void between(int ends)
{
    pthread_mutex_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t at;
    pthread_mutexattr_init(&at);
    pthread_mutexattr_setpshared(&at, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(shared, &at);
    if (ends && fork() == 0) {
        pthread_mutex_lock(shared);
        _exit(0);
    }
    if (ends) wait(NULL);
    else pthread_mutex_lock(shared);
    int parent = getpid();
    if (!ends && fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        asleep(parent, parent, shared);
        memset(shared, 0, 12);
        raise(SIGSTOP);
        forever();
    }
    ready();
    pthread_mutex_lock(shared);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "", *kind = argc > 2 ? argv[2] : "";
    pthread_mutexattr_t at;
    pthread_mutexattr_init(&at);
    pthread_mutexattr_setrobust(&at, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&lock.u.glibc, &at);
    is_musl = !strncmp(kind, "musl", 4);
    if (is_musl) memset(&lock, 0, sizeof lock);
    lock.u.musl.type = is_musl ? !strcmp(kind, "musl-recursive") : lock.u.musl.type;
    word = is_musl ? &lock.u.musl.lock : (unsigned *)&lock.u.glibc;
    if (!strcmp(mode, "between")) between(!strcmp(kind, "ended"));
    else if (!strcmp(mode, "handed")) {
        /* The first that waits gets it and keeps it; whoever gave it away then waits for the
         * second. */
        take();
        start(comes, (void *)1, 1);
        start(comes, (void *)2, 2);
        give();
        while (!taken) usleep(1000);
        ready();
        pthread_mutex_lock(&second);
    } else if (!strcmp(mode, "free")) {
        /* It is given away, and nobody is woken. */
        take();
        start(waits, NULL, 1);
        *word = 0;
        ready();
    } else if (!strcmp(mode, "rust")) {
        /* A reader of Rust's lock for readers and writers. It is free, or ("read") others read
         * meanwhile. */
        static int op = FUTEX_WAIT_BITSET_PRIVATE;
        word = pair;
        pair[0] = WRITTEN | READERS;
        start(waits, &op, 1);
        pair[0] = !strcmp(kind, "read") ? 2 | READERS | WAITERS : 0;
        ready();
    } else if (!strcmp(mode, "broadcast")) {
        /* musl's pthread_cond_broadcast moves a waiter to the mutex, which is held. */
        static struct node node = {.barrier = 2};
        word = (unsigned *)&node.barrier;
        is_musl = 1;
        lock.u.musl = (struct musl){.lock = EBUSY | WAITERS, .waiters = 1};
        start(broadcast, &node, 1);
        node.state = 1;
        node.barrier = 0;
        syscall(SYS_futex, &node.barrier, FUTEX_REQUEUE | FUTEX_PRIVATE_FLAG, 0, 1, &lock.u.musl.lock, 0);
        ready();
    } else return 2;
    forever();
}
