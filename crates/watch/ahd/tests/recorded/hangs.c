// Programs that hang, by name: each works for two seconds, writes its mark and hangs for ever.
#include "mark.h"

static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static pthread_t first;
static volatile int stop, jobs;
static sem_t sem;
static pthread_barrier_t barrier;
static int ends[2], back[2], epoll_fd;

static pthread_t run(void *(*f)(void *)) {
    pthread_t t;
    pthread_create(&t, 0, f, 0);
    return t;
}

static void work(void) {
    for (int i = 0; i < 100; i++) ms(20);
}

// Two locks in two orders.
static void *abba_other(void *x) {
    for (;;) {
        pthread_mutex_lock(&b);
        if (stop) { ms(100); mark(); pthread_mutex_lock(&a); }
        pthread_mutex_unlock(&b);
        ms(5);
    }
    return x;
}
static void abba(void) {
    run(abba_other);
    work();
    pthread_mutex_lock(&a);
    stop = 1;
    ms(50);
    pthread_mutex_lock(&b);
}

// The same between two workers, for whose end the first thread waits.
static void *abba_worker(void *x) {
    work();
    pthread_mutex_lock(&a);
    stop = 1;
    ms(50);
    pthread_mutex_lock(&b);
    return x;
}
static void abba_joined(void) {
    run(abba_worker);
    pthread_join(run(abba_other), 0);
}

// Two threads that wait for each other's end.
static void *joins_first(void *x) { work(); mark(); pthread_join(first, 0); return x; }
static void joins(void) { first = pthread_self(); pthread_join(run(joins_first), 0); }

// A consumer that missed its wake-up, and a producer that waits for it.
static void *consumer(void *x) {
    for (;;) {
        pthread_mutex_lock(&a);
        while (!jobs) pthread_cond_wait(&c, &a);
        jobs--;
        pthread_cond_broadcast(&c);
        pthread_mutex_unlock(&a);
    }
    return x;
}
static void wake_up_lost(void) {
    run(consumer);
    for (int i = 0; i < 150; i++) {
        pthread_mutex_lock(&a);
        jobs = 1;
        if (i == 149) mark(); else pthread_cond_broadcast(&c);
        while (jobs) pthread_cond_wait(&c, &a);
        pthread_mutex_unlock(&a);
        ms(15);
    }
}

// A lock that its own thread takes twice.
static void *takes(void *x) { for (;;) { pthread_mutex_lock(&a); pthread_mutex_unlock(&a); ms(10); } return x; }
static void twice(void) { run(takes); work(); pthread_mutex_lock(&a); mark(); pthread_mutex_lock(&a); }

// A worker that keeps a lock while it waits for what nobody sends; others queue up.
static void *keeps(void *x) { work(); pthread_mutex_lock(&a); mark(); char y; (void)!read(ends[0], &y, 1); return x; }
static void keeps_lock(void) { (void)!pipe(ends); for (int i = 0; i < 4; i++) run(takes); run(keeps); for (;;) ms(300); }

// A holder that ended.
static void *ends_with(void *x) { work(); pthread_mutex_lock(&a); mark(); return x; }
static void holder_ended(void) { run(takes); run(takes); pthread_join(run(ends_with), 0); for (;;) ms(300); }

// A semaphore that nobody posts any more.
static void *posts(void *x) { for (int i = 0; i < 100; i++) { ms(20); sem_post(&sem); } mark(); return x; }
static void semaphore(void) { sem_init(&sem, 0, 0); run(posts); for (;;) sem_wait(&sem); }

// A barrier for one thread more than there are.
static void *meets(void *x) { work(); pthread_barrier_wait(&barrier); return x; }
static void barrier_short(void) { pthread_barrier_init(&barrier, 0, 4); run(meets); run(meets); work(); mark(); pthread_barrier_wait(&barrier); }

// An event loop whose handler never returns, input waits.
static void *feeds(void *x) { for (;;) { (void)!write(ends[1], "x", 1); ms(10); } return x; }
static void epoll_spin(void) {
    (void)!pipe2(ends, O_NONBLOCK);
    epoll_fd = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, ends[0], &e);
    run(feeds);
    double start = now();
    for (;;) {
        epoll_wait(epoll_fd, &e, 1, -1);
        char x[64];
        (void)!read(ends[0], x, 64);
        if (now() - start > 3) { mark(); for (volatile unsigned long i = 0;; i++) {} }
    }
}

// A pool's worker that yields until a flag is set that nobody sets.
static void *yields(void *x) {
    for (;;) {
        pthread_mutex_lock(&a);
        while (!jobs) pthread_cond_wait(&c, &a);
        jobs--;
        pthread_mutex_unlock(&a);
        if (stop) { mark(); while (stop) sched_yield(); }
    }
    return x;
}
static void yield_spin(void) {
    for (int i = 0; i < 3; i++) run(yields);
    for (int i = 0;; i++) {
        ms(10);
        pthread_mutex_lock(&a);
        jobs++;
        pthread_cond_signal(&c);
        pthread_mutex_unlock(&a);
        if (i == 300) stop = 1;
        if (i == 301) ms(50);
        if (i > 302) jobs = 0;
    }
}

// Two processes, each of which writes more than the other reads.
static void both_write(void) {
    static char block[1 << 20];
    (void)!pipe(ends); (void)!pipe(back);
    work();
    mark();
    if (fork() == 0) { close(ends[1]); close(back[0]); (void)!write(back[1], block, sizeof block); (void)!read(ends[0], block, sizeof block); _exit(0); }
    close(ends[0]); close(back[1]);
    (void)!write(ends[1], block, sizeof block);
    (void)!read(back[0], block, sizeof block);
}

// Two processes that each wait for the other to speak first.
static void both_read(void) {
    int pair[2];
    char x;
    (void)!socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    int child = fork() == 0;
    close(pair[!child]);
    for (int i = 0; i < 100; i++) { (void)!write(pair[child], "x", 1); (void)!read(pair[child], &x, 1); ms(20); }
    if (!child) mark();
    (void)!read(pair[child], &x, 1);
}

// A process that fills a pipe that only it reads.
static void own_pipe(void) { char block[4096] = {0}; (void)!pipe(ends); for (int i = 0; i < 15; i++) { (void)!write(ends[1], block, 4096); ms(150); } mark(); for (;;) (void)!write(ends[1], block, 4096); }

// Locks on two files in two orders.
static void file_locks(void) {
    int child = fork() == 0;
    int one = open("/tmp/.orbit-recorded-1", O_RDWR | O_CREAT, 0600), two = open("/tmp/.orbit-recorded-2", O_RDWR | O_CREAT, 0600);
    work();
    flock(child ? one : two, LOCK_EX);
    ms(300);
    if (!child) mark();
    flock(child ? two : one, LOCK_EX);
}

// A reader that takes a lock again while a writer waits.
static pthread_rwlock_t rw = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static void *writer(void *x) { for (;;) { pthread_rwlock_wrlock(&rw); pthread_rwlock_unlock(&rw); ms(20); } return x; }
static void reads_again(void) { run(writer); for (int i = 0; i < 100; i++) { pthread_rwlock_rdlock(&rw); pthread_rwlock_unlock(&rw); ms(20); } pthread_rwlock_rdlock(&rw); ms(200); mark(); pthread_rwlock_rdlock(&rw); }

// A child that needs a lock which another thread of its parent held at the fork.
static void *holds_often(void *x) { for (;;) { pthread_mutex_lock(&a); ms(10); pthread_mutex_unlock(&a); } return x; }
static void fork_lock(void) { run(holds_often); work(); ms(3); if (fork() == 0) { mark(); pthread_mutex_lock(&a); pthread_mutex_lock(&a); _exit(0); } wait(0); }

static const struct { const char *name; void (*f)(void); } all[] = {
    {"abba", abba}, {"abba_joined", abba_joined}, {"joins", joins}, {"wake_up_lost", wake_up_lost}, {"twice", twice}, {"keeps_lock", keeps_lock}, {"holder_ended", holder_ended},
    {"semaphore", semaphore}, {"barrier_short", barrier_short}, {"epoll_spin", epoll_spin}, {"yield_spin", yield_spin}, {"both_write", both_write},
    {"both_read", both_read}, {"own_pipe", own_pipe}, {"file_locks", file_locks}, {"reads_again", reads_again}, {"fork_lock", fork_lock},
};

int main(int n, char **args) {
    for (unsigned i = 0; n > 1 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, args[1])) { all[i].f(); for (;;) pause(); }
    return 2;
}
