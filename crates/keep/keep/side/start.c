/* Finds the shared memory that ORBIT_KEEP names and sets the library up, in the process the
 * keeper started and in no other. */
#include "own.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

const volatile struct keep_orders *keep_orders;
volatile struct keep_news *keep_news;
volatile struct keep_both *keep_both;
volatile struct keep_calls_done *keep_done;
unsigned char *keep_log, *keep_stack;
int keep_own_pid;
__thread int keep_serves __attribute__((tls_model("initial-exec")));
__thread int keep_forks __attribute__((tls_model("initial-exec")));

/* Other libraries' constructors may call these before ours has run. */
static int find_clock_gettime(clockid_t clock, struct timespec *time)
{
    keep_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return keep_clock_gettime(clock, time);
}

static int find_sigaction(int sig, const struct sigaction *action, struct sigaction *before)
{
    keep_sigaction = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
    return keep_sigaction(sig, action, before);
}

int (*keep_clock_gettime)(clockid_t, struct timespec *) = find_clock_gettime;
int (*keep_sigaction)(int, const struct sigaction *, struct sigaction *) = find_sigaction;

void keep_forget(void)
{
    if (keep_orders)
        keep_disarm();
    if (keep_log)
        keep_own_actions();
    keep_serves = keep_under_way = 0;
    keep_log = NULL;
    keep_both = NULL;
    keep_orders = NULL;
}

/* Three pages, the handler's stack, then the log twice in a row. */
static int map_shared(int fd)
{
    struct keep_orders first;
    if (pread(fd, &first, sizeof first, 0) != sizeof first || first.magic != KEEP_MAGIC ||
        first.version != KEEP_VERSION)
        return 0;
    if (first.pid && first.pid != (uint32_t)getpid())
        return 0;
    size_t log = first.log_space, front = 3 * KEEP_PAGE + first.stack_bytes;
    unsigned char *base = mmap(NULL, front + 2 * log, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return 0;
    if (mmap(base, front + log, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
        (log &&
         mmap(base + front + log, log, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)front) ==
             MAP_FAILED) ||
        mprotect(base, KEEP_PAGE, PROT_READ) == -1) {
        munmap(base, front + 2 * log);
        return 0;
    }
    /* A child of fork shares none of it. */
    madvise(base, front + 2 * log, MADV_DONTFORK);
    keep_news = (void *)(base + KEEP_PAGE);
    keep_both = (void *)(base + 2 * KEEP_PAGE);
    keep_done = (void *)(base + 2 * KEEP_PAGE + KEEP_DONE_AT);
    keep_signals = (void *)(base + KEEP_PAGE + KEEP_SIGNALS_AT);
    keep_stack = base + 3 * KEEP_PAGE;
    keep_log = log ? base + front : NULL;
    keep_orders = (void *)base;
    return 1;
}

/* Makes this process, which is a kept one, ready. Returns with `ready` set. */
static void begin(void)
{
    /* What another program in this process has left there, which has ended in a call of exec. */
    keep_both->mode = KEEP_OFF;
    keep_news->busy = keep_news->parked = keep_news->has_waited = 0;
    keep_news->at_moment = keep_news->moment_count = keep_news->between = 0;
    keep_no_request();
    keep_news->dying_sp = 0;
    __atomic_add_fetch(&keep_news->images, 1, __ATOMIC_SEQ_CST);
    keep_news->syscall_ip = (uint64_t)keep_syscall;
    keep_news->text = (uint64_t)keep_text;
    keep_news->text_end = (uint64_t)keep_text_end;
    keep_news->confined = (uint64_t)&keep_both->confined;
    keep_news->handler = (uint64_t)keep_handler();
    keep_both->confined = keep_both->is_confined = 0;
    keep_news->serving = (uint32_t)syscall(SYS_gettid);
    keep_serves = 1;
    keep_own_pid = (int)keep_plain(SYS_getpid, 0, 0, 0, 0, 0, 0);
    keep_signals->taken = keep_signals->come;
    memset((void *)keep_done, 0, sizeof *keep_done);
    __atomic_store_n(&keep_news->ready, 1, __ATOMIC_SEQ_CST);
    keep_ring();
}

/* A child of fork gets memory of its own from the keeper: the descriptor is chosen before the
 * fork, for its parent's memory is not in it. */
#define FORK_STEPS 100 /* of 10 ms, that a fork waits for the keeper */
#define FAMILY_STEPS 1000 /* of 1 ms */
static __thread uint32_t spare, spare_of __attribute__((tls_model("initial-exec")));

/* A child that forks at once waits until its keeper knows it; for once. */
static int has_awaited;

static void await_family(void)
{
    const struct timespec step = {0, 1000000};
    for (int i = 0; !has_awaited && keep_orders->family == KEEP_FAMILY_COMES && i < FAMILY_STEPS; i++)
        keep_plain(SYS_nanosleep, (long)&step, 0, 0, 0, 0, 0);
    has_awaited = 1;
}

static void before_fork(void)
{
    spare = 0;
    keep_forks = 1;
    if (!keep_orders)
        return;
    await_family();
    if (!keep_keeper_lives())
        return;
    if (keep_orders->family != KEEP_FAMILY) {
        keep_news->children++;
        keep_ring();
        return;
    }
    const struct timespec step = {0, 10000000};
    uint32_t nth = keep_news->claimed, its;
    /* Once it is claimed the keeper puts another one in its place. */
    do {
        for (int i = 0; nth - keep_orders->adopted >= KEEP_SPARES; i++) {
            if (i == FORK_STEPS || !keep_orders->family || !keep_keeper_lives())
                return;
            keep_ring();
            keep_plain(SYS_nanosleep, (long)&step, 0, 0, 0, 0, 0);
        }
        its = keep_orders->spares[nth % KEEP_SPARES];
    } while (!__atomic_compare_exchange_n(&keep_news->claimed, &nth, nth + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    spare = its;
    spare_of = keep_orders->keeper_pid;
}

static void after_fork(void)
{
    keep_forks = 0;
    if (keep_orders && spare)
        keep_ring();
}

static void in_child(void)
{
    char name[48];
    int fd = -1, is_ours = 0;
    const unsigned char *stacks = keep_stack;
    if (!keep_orders) {
        keep_forks = 0;
        return;
    }
    /* From here on calls pass unlogged: the memory of the parent is not there. Signals that wait
     * for the parent's next call are the parent's. */
    keep_serves = keep_under_way = keep_signals_wait = keep_deferred = 0;
    if (spare) {
        snprintf(name, sizeof name, "/proc/%u/fd/%u", spare_of, spare);
        fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC);
    }
    if (fd != -1) {
        is_ours = map_shared(fd);
        syscall(SYS_close, fd);
    }
    keep_forks = 0;
    if (!is_ours) {
        keep_forget();
        return;
    }
    keep_rearm(stacks);
    has_awaited = 0;
    keep_news->pid = (uint32_t)getpid();
    begin();
}

/* Whether the call makes a copy of the process, which returns on the same stack. */
static int copies_process(long nr, const long *arg)
{
    const struct {
        uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack;
    } *given = (const void *)arg[0];
    if (nr == SYS_clone3)
        return given && !(given->flags & CLONE_VM) && !given->stack;
    return nr == SYS_fork || (nr == SYS_clone && !(arg[0] & CLONE_VM) && !arg[1]);
}

/* No fork handler sees the copy that is made so, as vsftpd makes its sessions. What is made here
 * is not the library's own call: it stands outside of keep_text. */
EXPORT long syscall(long number, ...)
{
    va_list list;
    long arg[6], ret;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        arg[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_getrandom && keep_log)
        return getrandom((void *)arg[0], (size_t)arg[1], (unsigned)arg[2]);
    int copies = copies_process(number, arg);
    register long fourth __asm__("r10") = arg[3], fifth __asm__("r8") = arg[4], sixth __asm__("r9") = arg[5];
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "0"(number), "D"(arg[0]), "S"(arg[1]), "d"(arg[2]), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    if (copies && ret == 0) {
        spare = 0;
        in_child();
    }
    if ((unsigned long)ret < -4095ul)
        return ret;
    errno = (int)-ret;
    return -1;
}

/* The variables are the keeper's: what the program starts must not see them. */
static void clean_environment(void)
{
    const char *before = getenv("ORBIT_KEEP_PRELOAD");
    if (before)
        setenv("LD_PRELOAD", before, 1);
    else
        unsetenv("LD_PRELOAD");
    unsetenv("ORBIT_KEEP_PRELOAD");
    unsetenv("ORBIT_KEEP");
}

static __attribute__((constructor)) void start(void)
{
    const char *name = getenv("ORBIT_KEEP");
    if (!name)
        return;
    int fd = open(name, O_RDWR | O_CLOEXEC);
    if (fd == -1)
        return;
    int is_ours = map_shared(fd);
    close(fd);
    if (!is_ours)
        return;
    keep_note_names(getenv("LD_PRELOAD"), name);
    clean_environment();
    pthread_atfork(before_fork, after_fork, in_child);
    keep_arm();
    begin();
}
