/* Threads: each gets a stack for signals in the shared memory, so that the overflow of its own
 * stack is caught too. Those that do not serve can be cancelled. */
#include "own.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>

/* Which of the stacks are taken. It is rolled back with the threads; the stacks are not. */
static unsigned char taken[KEEP_THREAD_STACKS];

struct beginning {
    void *(*run)(void *);
    void *of;
    uint64_t seen_blocked;
};

static void set_stack(void *at, size_t bytes, int flags)
{
    stack_t to = {.ss_sp = at, .ss_size = bytes, .ss_flags = flags};
    keep_plain(SYS_sigaltstack, (long)&to, 0, 0, 0, 0, 0);
}

/* The number of a stack of its own for this thread; -1: there is none left. */
static int take_stack(void)
{
    if (!keep_orders)
        return -1;
    for (int i = 0; i < KEEP_THREAD_STACKS; i++)
        if (!__atomic_exchange_n(&taken[i], 1, __ATOMIC_ACQUIRE)) {
            set_stack(keep_stack + KEEP_MAIN_STACK + (size_t)i * KEEP_THREAD_STACK, KEEP_THREAD_STACK, 0);
            return i;
        }
    return -1;
}

static void free_stack(void *number)
{
    int i = (int)(long)number;
    if (i == -1)
        return;
    set_stack(NULL, 0, SS_DISABLE);
    __atomic_store_n(&taken[i], 0, __ATOMIC_RELEASE);
}

static void *run(void *of)
{
    struct beginning beginning = *(struct beginning *)of;
    void *result;
    free(of);
    keep_seen_blocked = beginning.seen_blocked;
    pthread_cleanup_push(free_stack, (void *)(long)take_stack());
    result = beginning.run(beginning.of);
    pthread_cleanup_pop(1);
    return result;
}

EXPORT int pthread_create(pthread_t *restrict thread, const pthread_attr_t *restrict attributes,
    void *(*begin)(void *), void *restrict of)
{
    static int (*make)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!make)
        make = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT,
            "pthread_create");
    struct beginning *beginning = keep_orders ? malloc(sizeof *beginning) : NULL;
    if (!beginning)
        return make(thread, attributes, begin, of);
    *beginning = (struct beginning){begin, of, keep_seen_blocked};
    int failed = make(thread, attributes, run, beginning);
    if (failed)
        free(beginning);
    return failed;
}

/* libc's, weak: before glibc 2.34 a program without threads does not have it. */
extern int pthread_setcanceltype(int type, int *before) __attribute__((weak));

/* Calls at which libc cancels a thread. */
static int cancels(const struct keep_call *call)
{
    switch (call->nr) {
    case SYS_read:
    case SYS_readv:
    case SYS_pread64:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_write:
    case SYS_writev:
    case SYS_pwrite64:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_accept:
    case SYS_accept4:
    case SYS_connect:
    case SYS_openat:
    case SYS_poll:
    case SYS_ppoll:
    case SYS_select:
    case SYS_pselect6:
    case SYS_epoll_wait:
    case SYS_epoll_pwait:
    case SYS_nanosleep:
    case SYS_wait4:
        return 1;
    case SYS_fcntl:
        return call->arg[1] == F_SETLKW;
    }
    return 0;
}

long keep_call_of_other(const struct keep_call *call)
{
    int before = 0, is_point = pthread_setcanceltype && cancels(call);
    if (is_point)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    long ret = keep_raw(call->nr, call->arg[0], call->arg[1], call->arg[2], call->arg[3], call->arg[4], call->arg[5]);
    if (is_point)
        pthread_setcanceltype(before, NULL);
    return ret;
}
