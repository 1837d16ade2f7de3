// Programs that behave in one way each: fares WAY [ARGUMENTS].
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

static volatile unsigned long sink;
static volatile sig_atomic_t asked;
static volatile int never;

static void ask(int s) { asked = s; }

static double clock_of(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int word = 2;

// Waits as long as the word is 2, which is as if it were a lock that is held and wanted.
KEEP void waits_for_latch(void) {
    while (__atomic_load_n(&word, __ATOMIC_SEQ_CST) == 2) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

// Waits at the word once.
KEEP void *takes_lock(void *until_woken) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
    return until_woken;
}

// Uses so many milliseconds of CPU.
static void work(double ms) {
    double end = clock_of(CLOCK_THREAD_CPUTIME_ID) + ms / 1e3;
    while (clock_of(CLOCK_THREAD_CPUTIME_ID) < end)
        for (int i = 0; i < 20000; i++) sink += (unsigned long)i;
}

// Spins and changes nothing.
KEEP void still_here(void) {
    while (!never) {
    }
}

// Spins and counts.
KEEP void counts_here(void) {
    for (unsigned long n = 0;; n++) __asm__ volatile("" : "+r"(n));
}

// Twelve functions that take turns, as in a program that computes.
#define PART(n) KEEP unsigned long part##n(unsigned long x) { for (int i = 0; i < 30000; i++) x = x * 31 + n + sink; return x; }
PART(0) PART(1) PART(2) PART(3) PART(4) PART(5) PART(6) PART(7) PART(8) PART(9) PART(10) PART(11)
static unsigned long (*const parts[])(unsigned long) = {part0, part1, part2, part3, part4,  part5,
                                                        part6, part7, part8, part9, part10, part11};
KEEP void wanders_here(double seconds) {
    double end = clock_of(CLOCK_THREAD_CPUTIME_ID) + seconds;
    unsigned long x = 1;
    while (clock_of(CLOCK_THREAD_CPUTIME_ID) < end)
        for (int i = 0; i < 12; i++) x = parts[i](x);
    sink = x;
}

// A loop on epoll with a timer of 10 ms and `ms` of work each round, until SIGUSR1 or the end of
// `seconds`.
static void event_loop(double seconds, double ms) {
    int epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec each = {{0, 10000000}, {0, 10000000}};
    struct epoll_event e = {.events = EPOLLIN};
    uint64_t n;
    timerfd_settime(timer, 0, &each, NULL);
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &e);
    double end = clock_of(CLOCK_MONOTONIC) + seconds;
    while (!asked && clock_of(CLOCK_MONOTONIC) < end) {
        if (epoll_wait(epoll, &e, 1, -1) == 1 && read(timer, &n, sizeof n) > 0) work(ms);
    }
}

// Touches every page of a large file that is mapped, or of memory of its own ("-"), again and
// again, in a loop with naps.
static void thrashes(const char *path, size_t size) {
    int own = !strcmp(path, "-"), fd = own ? -1 : open(path, O_RDONLY);
    int how = own ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    volatile char *p = mmap(NULL, size, own ? PROT_READ | PROT_WRITE : PROT_READ, how, fd, 0);
    if (p == MAP_FAILED) exit(3);
    for (size_t at = 0; own && at < size; at += 4096) p[at] = (char)(at >> 12 | 1);
    madvise((void *)p, size, MADV_RANDOM);
    unsigned long x = 1;
    while (!asked) {
        for (int i = 0; i < 64 && !asked; i++) {
            x = x * 6364136223846793005UL + 1442695040888963407UL;
            sink += (unsigned long)p[(x >> 20) % size];
        }
        poll(NULL, 0, 1);
    }
}

// Uses so many seconds of CPU for taking memory, and gives it back at the end.
static void fills(double seconds) {
    static char *taken[64];
    size_t size = 4 << 20;
    double end = clock_of(CLOCK_THREAD_CPUTIME_ID) + seconds;
    for (int i = 0; clock_of(CLOCK_THREAD_CPUTIME_ID) < end; i++) {
        char **at = &taken[i % 64];
        if (*at) munmap(*at, size);
        *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (*at == MAP_FAILED) exit(3);
        memset(*at, i + 1, size);
    }
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, other = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

static void *idles(void *a) {
    // One in eight wakes up now and then; the others sleep.
    if ((intptr_t)a % 8 == 0)
        for (;;) poll(NULL, 0, 200);
    pthread_mutex_lock(&mutex);
    for (;;) pthread_cond_wait(&cond, &mutex);
    return a;
}

KEEP void *deadlocks_here(void *a) {
    pthread_mutex_lock(&other);
    while (!asked) poll(NULL, 0, 20);
    pthread_mutex_lock(&other);
    return a;
}

static void crowd(int n) {
    pthread_attr_t attr;
    pthread_t t;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 32 << 10);
    for (intptr_t i = 0; i < n; i++)
        if (pthread_create(&t, &attr, idles, (void *)i)) exit(4);
    if (pthread_create(&t, &attr, deadlocks_here, NULL)) exit(4);
    event_loop(1e9, 1);
    for (;;) poll(NULL, 0, 50);
}

static int pipe_ends[2];

static void write_to_self(int s) {
    (void)s;
    (void)!write(pipe_ends[1], "x", 1);
}

// Waits for bytes that the handler of a signal writes after some seconds.
static void reads_from_self(double seconds) {
    char byte;
    if (pipe(pipe_ends) != 0) exit(3);
    signal(SIGALRM, write_to_self);
    for (;;) {
        alarm((unsigned)seconds);
        if (read(pipe_ends[0], &byte, 1) != 1) exit(3);
    }
}

static sem_t given;

static void give(int s) {
    (void)s;
    sem_post(&given);
}

static void *reads_and_gives(void *a) {
    char byte;
    if (read(pipe_ends[0], &byte, 1) == 1) sem_post(&given);
    return a;
}

// Waits for Ctrl-C as programs do: its handler writes a pipe that is read, here or by a thread that
// gives word, or it gives word itself.
static void waits_for_ctrl_c(const char *how) {
    pthread_t t;
    if (pipe(pipe_ends) != 0) exit(3);
    sem_init(&given, 0, 0);
    signal(SIGUSR1, SIG_DFL);
    signal(SIGINT, !strcmp(how, "word") ? give : write_to_self);
    if (!strcmp(how, "pipe")) reads_and_gives(NULL);
    else if (!strcmp(how, "thread")) pthread_create(&t, NULL, reads_and_gives, NULL);
    while (sem_wait(&given) != 0) {
    }
}

// A worker that has had no job yet.
static void *takes_jobs(void *a) {
    char byte;
    while (read(pipe_ends[0], &byte, 1) == 1) work(1);
    return a;
}

// Reads from a pipe with a name, as a daemon does: it holds the other end itself.
static void reads_from_fifo(const char *path) {
    if (mkfifo(path, 0600) != 0 || (pipe_ends[0] = open(path, O_RDWR)) < 0) exit(3);
    // No handler of a signal could write.
    signal(SIGUSR1, SIG_DFL);
}

// Reads from a pipe whose other end is on its way to a child, in a socket, for so many seconds. It
// holds that end itself too.
static void reads_while_it_is_sent(double seconds) {
    int sockets[2];
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec one = {&byte, 1};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) != 0) exit(3);
    signal(SIGUSR1, SIG_DFL);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(sockets[0]);
        poll(NULL, 0, (int)(seconds * 1e3));
        if (recvmsg(sockets[1], &m, 0) == 1) (void)!write(*(int *)CMSG_DATA(CMSG_FIRSTHDR(&m)), "x", 1);
        for (;;) pause();
    }
    close(sockets[1]);
    if (pipe(pipe_ends) != 0) exit(3);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &pipe_ends[1], sizeof(int));
    if (sendmsg(sockets[0], &m, 0) != 1 || read(pipe_ends[0], &byte, 1) != 1) exit(3);
    for (;;) pause();
}

static int locked(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) != 0) exit(3);
    return fd;
}

// Sends a descriptor to nobody, and closes it.
static void sent_away(int fd) {
    int sockets[2];
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec one = {&byte, 1};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) != 0) exit(3);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(int));
    if (sendmsg(sockets[0], &m, 0) != 1 || close(fd) != 0) exit(3);
}

// Holds a lock on a file while a child of its computes; another child waits for the lock.
static void locked_while_it_works(const char *path) {
    locked(path);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        counts_here();
    }
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        locked(path);
    }
    while (wait(NULL) > 0) {
    }
}

// Waits for a lock whose taker has ended: a child of that one has it and works, or sleeps.
static void locked_by_one_that_ended(const char *path, int works) {
    int ready[2];
    char byte;
    pid_t self = getpid();
    if (pipe(ready) != 0) exit(3);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (fork() == 0) {
        locked(path);
        if (fork() != 0) _exit(0);
        while (getppid() != self) poll(NULL, 0, 1);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)!write(ready[1], "x", 1);
        if (works) counts_here();
        for (;;) sleep(1000);
    }
    wait(NULL);
    if (read(ready[0], &byte, 1) != 1) exit(3);
    locked(path);
}

// Two processes take two locks crosswise.
static void locked_crosswise(const char *dir) {
    char paths[2][4096];
    int ready[2], mine = 0;
    for (int i = 0; i < 2; i++) snprintf(paths[i], sizeof paths[i], "%s/lock%d", dir, i);
    if (pipe(ready) != 0) exit(3);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        mine = 1;
    }
    locked(paths[mine]);
    (void)!write(ready[1], "x", 1);
    // Until both have theirs.
    for (int there = 0; there < 2; poll(NULL, 0, 10)) ioctl(ready[0], FIONREAD, &there);
    locked(paths[!mine]);
}

static pthread_rwlock_t readers = PTHREAD_RWLOCK_INITIALIZER;

// Wants to write while it reads itself.
KEEP void *upgrades_here(void *a) {
    pthread_rwlock_rdlock(&readers);
    pthread_rwlock_wrlock(&readers);
    return a;
}

static void *holds(void *a) {
    pthread_mutex_lock(&other);
    for (;;) sleep(1000);
    return a;
}

// Holds the lock for so many milliseconds of CPU, again and again.
static void *works_with_it(void *a) {
    for (;;) {
        pthread_mutex_lock(&other);
        work(*(double *)a);
        pthread_mutex_unlock(&other);
        poll(NULL, 0, 50);
    }
    return a;
}

static void *naps(void *a) {
    for (;;) poll(NULL, 0, 150);
    return a;
}

static pthread_barrier_t both;

// One of two threads that take two locks crosswise once they are asked to.
static void *in_a_ring(void *a) {
    pthread_mutex_t *locks[] = {&mutex, &other};
    intptr_t mine = (intptr_t)a;
    while (!asked) poll(NULL, 0, 20);
    pthread_mutex_lock(locks[mine]);
    pthread_barrier_wait(&both);
    pthread_mutex_lock(locks[!mine]);
    return a;
}

static int gives(void *a) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    poll(NULL, 0, (int)(*(double *)a * 1e3));
    sem_post(&given);
    while (!never) pause();
    return 0;
}

// Waits, alone, for what a child gives after so many seconds: into memory that both share, or into
// the child's own copy.
static void takes_from_child(double seconds, int shared) {
    static char stack[64 << 10] __attribute__((aligned(16)));
    sem_init(&given, 0, 0);
    signal(SIGUSR1, SIG_DFL);
    if (clone(gives, stack + sizeof stack, (shared ? CLONE_VM : 0) | SIGCHLD, &seconds) < 0) exit(3);
    while (sem_wait(&given) != 0) {
    }
    for (;;) pause();
}

static pthread_mutex_t *crossed;
static atomic_int *arrived;

// One of two, threads or processes, that hold a lock each and want the other's. The second one
// gives up after some 1000 s.
KEEP void *in_a_timed_ring(void *a) {
    intptr_t mine = (intptr_t)a;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += 1000;
    pthread_mutex_lock(&crossed[mine]);
    // Both have one before either wants the other's.
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < 2) poll(NULL, 0, 1);
    poll(NULL, 0, 100);
    if (mine == 0) pthread_mutex_lock(&crossed[1]);
    else pthread_mutex_timedlock(&crossed[0], &t);
    for (;;) pause();
}

static void crosses(int processes) {
    pthread_mutexattr_t at;
    pthread_t t;
    crossed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (crossed == MAP_FAILED) exit(3);
    arrived = (atomic_int *)(crossed + 2);
    pthread_mutexattr_init(&at);
    if (processes) pthread_mutexattr_setpshared(&at, PTHREAD_PROCESS_SHARED);
    for (int i = 0; i < 2; i++) pthread_mutex_init(&crossed[i], &at);
    for (intptr_t i = 0; i < 2; i++) {
        if (!processes) pthread_create(&t, NULL, in_a_timed_ring, (void *)i);
        else if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            in_a_timed_ring((void *)i);
        }
    }
    for (;;) pause();
}

static void *spins_when_asked(void *a) {
    while (!asked) poll(NULL, 0, 20);
    still_here();
    return a;
}

// One long call that uses CPU. Ends the program: 7 if the call did all it was asked for.
KEEP void one_long_call(void) {
    enum { PART = 3 << 19, PARTS = 1023 };
    static struct iovec parts[PARTS];
    void *bytes = malloc(PART);
    memset(bytes, 1, PART);
    for (int i = 0; i < PARTS; i++) parts[i] = (struct iovec){bytes, PART};
    _exit(readv(open("/dev/urandom", O_RDONLY), parts, PARTS) == (ssize_t)PART * PARTS ? 7 : 8);
}

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "";
    double number = argc > 2 ? atof(argv[2]) : 0;
    signal(SIGUSR1, ask);
    if (!strcmp(way, "still")) {
        still_here();
    } else if (!strcmp(way, "counts")) {
        counts_here();
    } else if (!strcmp(way, "wanders")) {
        wanders_here(number);
    } else if (!strcmp(way, "loop")) {
        // Spins once it is asked to.
        event_loop(1e9, number);
        still_here();
    } else if (!strcmp(way, "ends")) {
        event_loop(number, 1);
    } else if (!strcmp(way, "exec")) {
        // A loop first, then another program by exec.
        event_loop(number, 0.3);
        execv(argv[3], argv + 3);
    } else if (!strcmp(way, "forks")) {
        if (fork() == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
        else for (;;) pause();
        event_loop(4, 0.3);
        still_here();
    } else if (!strcmp(way, "private")) {
        // As after a change of credentials: its memory is nobody's business now.
        event_loop(2.5, 0.3);
        if (getuid() == 0 && setresuid(65534, 65534, 65534) != 0) return 3;
        prctl(PR_SET_DUMPABLE, 0);
        event_loop(1e9, 0.3);
        still_here();
    } else if (!strcmp(way, "crowd")) {
        crowd((int)number);
    } else if (!strcmp(way, "thrashes")) {
        thrashes(argv[2], (size_t)atol(argv[3]));
        still_here();
    } else if (!strcmp(way, "fills")) {
        // As a server that answers something huge now and then.
        for (int i = 0; i < 3; i++) {
            event_loop(4, 0.3);
            fills(number);
        }
        event_loop(1e9, 0.3);
        still_here();
    } else if (!strcmp(way, "self-pipe")) {
        reads_from_self(number);
    } else if (!strcmp(way, "ctrl-c")) {
        waits_for_ctrl_c(argv[2]);
    } else if (!strcmp(way, "sent-pipe")) {
        reads_while_it_is_sent(number);
    } else if (!strcmp(way, "job-pipe")) {
        pthread_t t;
        if (pipe(pipe_ends) != 0) return 3;
        pthread_create(&t, NULL, takes_jobs, NULL);
        event_loop(1e9, 0.3);
    } else if (!strcmp(way, "fifo")) {
        reads_from_fifo(argv[2]);
        takes_jobs(NULL);
    } else if (!strcmp(way, "fifo-and-worker")) {
        pthread_t t;
        reads_from_fifo(argv[2]);
        pthread_create(&t, NULL, idles, (void *)1);
        takes_jobs(NULL);
    } else if (!strcmp(way, "lock-and-work")) {
        locked_while_it_works(argv[2]);
    } else if (!strcmp(way, "lock-left-and-work") || !strcmp(way, "lock-left")) {
        locked_by_one_that_ended(argv[2], way[9] != 0);
    } else if (!strcmp(way, "locks-twice")) {
        locked(argv[2]);
        locked(argv[2]);
    } else if (!strcmp(way, "crosswise")) {
        locked_crosswise(argv[2]);
    } else if (!strcmp(way, "upgrades")) {
        pthread_t t;
        pthread_create(&t, NULL, upgrades_here, NULL);
        event_loop(1e9, 0.3);
    } else if (!strcmp(way, "lock-on-its-way")) {
        // Nobody has the file open any more in the way that has the lock: it is in a socket.
        sent_away(locked(argv[2]));
        locked(argv[2]);
    } else if (!strcmp(way, "of-descriptor")) {
        // Locks of two descriptors of one process are in each other's way too.
        struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int held = open(argv[2], O_RDWR | O_CREAT, 0600), wanted = open(argv[2], O_RDWR);
        fcntl(held, F_OFD_SETLK, &all);
        fcntl(wanted, F_OFD_SETLKW, &all);
    } else if (!strcmp(way, "latch")) {
        // Something else than a lock, for which work is done.
        pthread_t t;
        pthread_create(&t, NULL, naps, NULL);
        waits_for_latch();
    } else if (!strcmp(way, "queue")) {
        // A lock that goes from hand to hand, of which each in the queue has long to wait; it is
        // free for most of the time.
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 64 << 10);
        pthread_t t;
        int stutters = !strcmp(argv[2], "stutters");
        for (int i = 0; i < (stutters ? 300 : 1500); i++)
            if (pthread_create(&t, &small, takes_lock, NULL)) return 4;
        poll(NULL, 0, 300);
        word = !strcmp(argv[2], "held") ? 2 : 0;
        for (int i = 0;; i++) {
            syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
            // As if whoever wakes them had lost its CPU.
            poll(NULL, 0, stutters && i % 5 == 0 ? 200 : 10);
        }
    } else if (!strcmp(way, "queue-and-ticks")) {
        // A lock that nobody gives back: one waits for it, and so does main, which signals wake now
        // and then.
        pthread_t t;
        sigset_t ticks;
        sigemptyset(&ticks);
        sigaddset(&ticks, SIGALRM);
        pthread_sigmask(SIG_BLOCK, &ticks, NULL);
        pthread_create(&t, NULL, takes_lock, NULL);
        pthread_sigmask(SIG_UNBLOCK, &ticks, NULL);
        poll(NULL, 0, 200);
        struct itimerval each = {{0, 300000}, {0, 300000}};
        signal(SIGALRM, ask);
        setitimer(ITIMER_REAL, &each, NULL);
        takes_lock(NULL);
    } else if (!strcmp(way, "holds")) {
        pthread_t t;
        pthread_create(&t, NULL, holds, NULL);
        poll(NULL, 0, 100);
        pthread_mutex_lock(&other);
    } else if (!strcmp(way, "shares-memory") || !strcmp(way, "copies-memory")) {
        takes_from_child(number, *way == 's');
    } else if (!strcmp(way, "timed-ring")) {
        crosses(number != 0);
    } else if (!strcmp(way, "long-call")) {
        while (!asked) poll(NULL, 0, 20);
        one_long_call();
    } else if (!strcmp(way, "behind")) {
        // The threads that hang come after many that sleep and wake up.
        pthread_t t;
        for (int i = 0; i < (int)number; i++)
            if (pthread_create(&t, NULL, naps, NULL)) return 4;
        pthread_barrier_init(&both, NULL, 2);
        if (!strcmp(argv[3], "spin")) pthread_create(&t, NULL, spins_when_asked, NULL);
        else
            for (intptr_t i = 0; i < 2; i++) pthread_create(&t, NULL, in_a_ring, (void *)i);
        for (;;) pause();
    } else if (!strcmp(way, "holds-in-turns")) {
        pthread_t t;
        pthread_create(&t, NULL, works_with_it, &number);
        for (;;) {
            // Where it usually waits.
            for (int i = 0; i < 40; i++) poll(NULL, 0, 25);
            pthread_mutex_lock(&other);
            pthread_mutex_unlock(&other);
        }
    } else {
        fprintf(stderr, "fares: unknown way `%s`\n", way);
        return 2;
    }
    return 0;
}
