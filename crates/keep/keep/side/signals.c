/* Fatal signals: where the default action would kill the program, its thread waits for the keeper
 * instead.
 *
 * The kernel always has `on_fatal` for these signals. What the program itself asked for is in
 * `wanted`, which is rolled back with the rest of its memory, and is called from there: programs
 * that handle such signals themselves (JVM, wasm runtimes) are left to them. A handler that only
 * reports the crash and dies runs when the program is given up: one that was installed for one
 * signal only (SA_RESETHAND), or after which the same signal has come again, and never anything
 * else.
 */
#include "own.h"
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>

static const int FATAL[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};

/* How much stack a handler of the program is taken to use at most. */
#define HANDLER_STACK (8u << 20)

/* What the program asked for, by signal. All 0 is SIG_DFL. */
static struct sigaction wanted[32];

static int is_fatal(int sig)
{
    for (size_t i = 0; i < sizeof FATAL / sizeof *FATAL; i++)
        if (FATAL[i] == sig)
            return 1;
    return 0;
}

static int has_handler(const struct sigaction *action)
{
    return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

/* A fault comes again when the handler returns, with its address; a signal that was sent is sent
 * again. */
static void send_again(int sig, const siginfo_t *info)
{
    if (info->si_code <= 0)
        keep_send(sig, info);
}

void keep_send(int sig, const siginfo_t *info)
{
    keep_plain(SYS_rt_tgsigqueueinfo, keep_plain(SYS_getpid, 0, 0, 0, 0, 0, 0),
        keep_plain(SYS_gettid, 0, 0, 0, 0, 0, 0), sig, (long)info, 0, 0);
}

static int is_pending(int sig)
{
    uint64_t pending = 0;
    keep_plain(SYS_rt_sigpending, (long)&pending, 8, 0, 0, 0, 0);
    return pending >> (sig - 1) & 1;
}

/* Whether an address is in the memory for our stacks; that may be gone, in a child of fork. */
static int is_in(const unsigned char *stacks, const void *at)
{
    const unsigned char *byte = at;
    return byte >= stacks && byte < stacks + KEEP_MAIN_STACK + (size_t)KEEP_THREAD_STACKS * KEEP_THREAD_STACK;
}

static int is_on_our_stack(void)
{
    return is_in(keep_stack, __builtin_frame_address(0));
}

static int install(int sig, int is_last);

/* 1: the program has been given up, and its own handlers have it. */
static volatile int is_over;

static int is_listed(const volatile uint64_t *list, uint64_t handler)
{
    for (int i = 0; i < KEEP_HANDLERS; i++)
        if (list[i] == handler)
            return 1;
    return 0;
}

static void list(volatile uint64_t *list, uint64_t handler)
{
    if (!handler || is_listed(list, handler))
        return;
    for (int i = 0; i < KEEP_HANDLERS; i++)
        if (!list[i]) {
            list[i] = handler;
            return;
        }
}

/* Whether the program's handler runs only when the program is given up. */
static int runs_last(const struct sigaction *action)
{
    uint64_t handler = (uint64_t)action->sa_handler;
    switch (keep_orders->handlers) {
    case KEEP_HANDLERS_FIRST: return 0;
    case KEEP_HANDLERS_LAST: return 1;
    default:
        return !is_listed(keep_news->resumed, handler)
            && ((action->sa_flags & SA_RESETHAND) || is_listed(keep_news->died, handler));
    }
}

/* Whether the program has sent itself the signal, which it handles: that is no crash, unless it is
 * abort's. */
static int is_raised(int sig, const siginfo_t *info)
{
    return sig != SIGABRT && info->si_code == SI_TKILL &&
           info->si_pid == (int)keep_plain(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

/* Dies of the signal as if nothing of ours were here: of the handler that the program asked for,
 * if that has not run yet. Only plain system calls and the stack of the handler: memory may be
 * half rolled back. */
static void die(int sig, const siginfo_t *info, int is_handled)
{
    struct sigaction *action = &wanted[sig];
    if (!is_handled && keep_both && has_handler(action) && keep_sigaction(sig, action, NULL) == 0) {
        is_over = 1;
        keep_both->mode = KEEP_OFF;
        if (action->sa_flags & SA_RESETHAND)
            memset(action, 0, sizeof *action);
        send_again(sig, info);
        return;
    }
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        unsigned long mask;
    } none = {SIG_DFL, 0, NULL, 0};
    keep_plain(SYS_rt_sigaction, sig, (long)&none, 0, 8, 0, 0);
    send_again(sig, info);
}

static void note(int sig, const siginfo_t *info, const ucontext_t *context)
{
    volatile struct keep_crash *crash = &keep_both->crash;
    crash->signal = (uint32_t)sig;
    crash->code = info->si_code;
    crash->tid = (uint32_t)keep_plain(SYS_gettid, 0, 0, 0, 0, 0, 0);
    crash->address = (uint64_t)info->si_addr;
    crash->ip = (uint64_t)context->uc_mcontext.gregs[REG_RIP];
    crash->sp = (uint64_t)context->uc_mcontext.gregs[REG_RSP];
    crash->bp = (uint64_t)context->uc_mcontext.gregs[REG_RBP];
    crash->head = keep_both->head;
    static const int ORDER[KEEP_REGS] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
                                         REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
    for (int i = 0; i < KEEP_REGS; i++)
        crash->regs[i] = (uint64_t)context->uc_mcontext.gregs[ORDER[i]];
}

/* Whether this thread was in a handler of the program for a fatal signal; one that was left by
 * longjmp does not count. */
static int is_in_handler(const ucontext_t *context)
{
    uint64_t began = keep_news->dying_sp, now = (uint64_t)context->uc_mcontext.gregs[REG_RSP];
    return began && now <= began && began - now < HANDLER_STACK &&
           keep_news->dying_tid == (uint32_t)keep_plain(SYS_gettid, 0, 0, 0, 0, 0, 0);
}

static void wait_for_verdict(int sig, const siginfo_t *info, const ucontext_t *context)
{
    volatile struct keep_crash *crash = &keep_both->crash;
    if (keep_serves)
        keep_unconfine();
    const struct timespec step = {0, 20000000};
    int is_handled = keep_news->is_last || is_in_handler(context);
    if (keep_news->called && (is_handled || keep_news->called_ip == (uint64_t)context->uc_mcontext.gregs[REG_RIP])) {
        list(keep_news->died, keep_news->called);
        is_handled = 1;
    }
    keep_news->called = 0;
    uint32_t own = (uint32_t)keep_plain(SYS_gettid, 0, 0, 0, 0, 0, 0);
    for (;;) {
        uint32_t state = __atomic_load_n(&crash->state, __ATOMIC_SEQ_CST);
        /* This thread waited for the verdict on its replay, which was proven meanwhile. */
        int is_next = state == KEEP_ACCEPT && crash->tid == own;
        /* If another thread has crashed, it is that crash which the keeper deals with; this thread
         * is rolled back with it, or its turn comes. */
        if (state == KEEP_NO_CRASH || is_next) {
            /* A handler of the program that ends by sending the signal again: the first crash is
             * the one that counts. */
            if (!keep_news->is_last && !is_in_handler(context))
                note(sig, info, context);
            state = KEEP_CRASHED;
            __atomic_store_n(&crash->state, state, __ATOMIC_SEQ_CST);
            keep_ring();
        }
        if (state == KEEP_GIVE_UP || !keep_keeper_lives())
            break;
        keep_plain(SYS_futex, (long)&crash->state, FUTEX_WAIT, (long)state, (long)&step, 0, 0);
    }
    die(sig, info, is_handled);
}

void keep_die(void)
{
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        unsigned long mask;
    } none = {SIG_DFL, 0, NULL, 0};
    int sig = keep_orders->signal ? (int)keep_orders->signal : SIGABRT;
    uint64_t set = 1ull << (sig - 1);
    keep_plain(SYS_rt_sigaction, sig, (long)&none, 0, 8, 0, 0);
    keep_plain(SYS_rt_sigprocmask, SIG_UNBLOCK, (long)&set, 0, 8, 0, 0);
    for (;;)
        keep_plain(SYS_tgkill, keep_plain(SYS_getpid, 0, 0, 0, 0, 0, 0), keep_plain(SYS_gettid, 0, 0, 0, 0, 0, 0), sig,
            0, 0, 0);
}

int keep_report_replay(int code)
{
    volatile struct keep_crash *crash = &keep_both->crash;
    const struct timespec step = {0, 20000000};
    keep_unconfine();
    crash->signal = 0;
    crash->code = code;
    crash->tid = (uint32_t)keep_plain(SYS_gettid, 0, 0, 0, 0, 0, 0);
    crash->address = crash->ip = 0;
    crash->head = keep_both->head;
    __atomic_store_n(&crash->state, KEEP_CRASHED, __ATOMIC_SEQ_CST);
    keep_ring();
    while (keep_keeper_lives() && __atomic_load_n(&crash->state, __ATOMIC_SEQ_CST) == KEEP_CRASHED)
        keep_plain(SYS_futex, (long)&crash->state, FUTEX_WAIT, KEEP_CRASHED, (long)&step, 0, 0);
    uint32_t verdict = __atomic_exchange_n(&crash->state, KEEP_NO_CRASH, __ATOMIC_SEQ_CST);
    if (verdict == KEEP_GIVE_UP)
        keep_die();
    return verdict == KEEP_ACCEPT;
}

/* Whether a system call is about to be made, and has not been. */
static int is_not_made(const ucontext_t *at)
{
    const char *ip = (const char *)at->uc_mcontext.gregs[REG_RIP];
    return ip >= keep_check && ip <= keep_syscall;
}

static void on_fatal(int sig, siginfo_t *info, void *context)
{
    int saved = errno;
    const ucontext_t *at = context;
    struct sigaction *action = &wanted[sig];
    if (keep_is_dispatched(sig, info)) {
        keep_dispatch(context);
        errno = saved;
        return;
    }
    if (!keep_orders || is_over) { /* a child between its fork and keep_disarm, or given up */
        die(sig, info, 0);
        return;
    }
    if (keep_under_way && info->si_code <= 0 && !is_not_made(at)) {
        keep_deferred_info = *info;
        keep_deferred = sig;
        return;
    }
    /* The handler has seen this crash, before the rollback. */
    int is_repeat = keep_both->mode == KEEP_REPLAY && keep_both->cursor >= keep_both->head &&
                    keep_orders->known_ip == (uint64_t)at->uc_mcontext.gregs[REG_RIP];
    int is_last = runs_last(action) && !(is_raised(sig, info) && !is_in_handler(at));
    if (!has_handler(action) || is_repeat || is_last) {
        /* A fault cannot be ignored: the kernel kills then. */
        if (action->sa_handler == SIG_IGN && info->si_code <= 0)
            return;
        wait_for_verdict(sig, info, at);
        return;
    }
    /* A rollback took `wanted` back, but not what the kernel has: this handler is not meant for
     * our stack. So it is with a handler for once of a signal that is no crash. The signal comes
     * again, after this handler. */
    if (!(action->sa_flags & SA_ONSTACK) && is_on_our_stack()) {
        uint64_t set = KEEP_BIT(sig);
        keep_plain(SYS_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, 8, 0, 0);
        install(sig, 0);
        send_again(sig, info);
        return;
    }
    struct sigaction called = *action;
    if (called.sa_flags & SA_RESETHAND)
        memset(action, 0, sizeof *action);
    int is_first = !is_in_handler(at);
    uint64_t crash_ip = (uint64_t)at->uc_mcontext.gregs[REG_RIP];
    if (is_first) {
        note(sig, info, at);
        keep_news->dying_tid = (uint32_t)keep_plain(SYS_gettid, 0, 0, 0, 0, 0, 0);
        keep_news->dying_sp = (uint64_t)__builtin_frame_address(0);
        /* Another call of it: after the one before the program has continued. */
        if (keep_news->called == (uint64_t)called.sa_handler && keep_news->called_ip != crash_ip)
            list(keep_news->resumed, keep_news->called);
        keep_news->called = (uint64_t)called.sa_handler;
        keep_news->called_ip = crash_ip;
        /* Then what other threads run into meanwhile comes of the handler (Redis' tests all
         * memory). */
        keep_news->is_last = (called.sa_flags & SA_RESETHAND) != 0;
    }
    errno = saved;
    if (called.sa_flags & SA_SIGINFO)
        called.sa_sigaction(sig, info, context);
    else
        called.sa_handler(sig);
    if (is_first) {
        keep_news->dying_sp = 0;
        keep_news->is_last = 0;
        /* It has sent the program elsewhere. */
        if ((uint64_t)at->uc_mcontext.gregs[REG_RIP] != crash_ip)
            list(keep_news->resumed, (uint64_t)called.sa_handler);
        /* It has not died of a signal that was sent once: the next one at this instruction, which
         * is raise's, is another one. */
        if (info->si_code <= 0 && !is_pending(sig))
            keep_news->called = 0;
    }
    if (!has_handler(action) || runs_last(action))
        install(sig, 1);
}

/* The kernel's structure. */
struct kernel_action {
    void *handler;
    unsigned long flags;
    void *end;
    uint64_t mask;
};

#define HAS_END 0x04000000 /* SA_RESTORER */

/* Gives the kernel our handler, with the mask and flags that the program asked for. A signal that
 * is ignored stays so: what the program executes inherits that, and no handler. Then a fault kills,
 * as it does without us. By SIGSYS a replay is confined: nginx ignores it. */
static int install(int sig, int is_last)
{
    const struct sigaction *action = &wanted[sig];
    struct kernel_action real = {on_fatal, SA_SIGINFO | HAS_END, keep_handler_end, 0};
    if (action->sa_handler == SIG_IGN && !(sig == SIGSYS && keep_log)) {
        real.handler = SIG_IGN;
    } else if (has_handler(action) && !(is_last && runs_last(action))) {
        real.mask = *(const uint64_t *)&action->sa_mask & ~KEEP_OPEN_SIGNALS;
        real.flags |= (unsigned long)(unsigned)(action->sa_flags & ~SA_RESETHAND);
    } else {
        real.flags |= SA_ONSTACK | SA_NODEFER;
    }
    long ret = keep_plain(SYS_rt_sigaction, sig, (long)&real, 0, 8, 0, 0);
    if (ret < 0)
        errno = (int)-ret;
    return ret < 0 ? -1 : 0;
}

void *keep_handler(void)
{
    return on_fatal;
}

/* Not by the function below: in a child of fork the shared memory that it counts in is not
 * there. */
static void plain_stack(const stack_t *to, stack_t *before)
{
    keep_plain(SYS_sigaltstack, (long)to, (long)before, 0, 0, 0, 0);
}

/* Our handlers run there, unless the program has a stack for its own. */
static void give_stack(void)
{
    stack_t ours = {.ss_sp = keep_stack, .ss_size = KEEP_MAIN_STACK};
    plain_stack(&ours, NULL);
}

void keep_rearm(const unsigned char *before)
{
    stack_t now = {0};
    plain_stack(NULL, &now);
    if (is_in(before, now.ss_sp))
        give_stack();
}

void keep_arm(void)
{
    stack_t none = {0};
    plain_stack(NULL, &none);
    if (none.ss_flags & SS_DISABLE)
        give_stack();
    for (size_t i = 0; i < sizeof FATAL / sizeof *FATAL; i++) {
        keep_sigaction(FATAL[i], NULL, &wanted[FATAL[i]]);
        install(FATAL[i], 1);
    }
}

void keep_disarm(void)
{
    stack_t now = {0};
    plain_stack(NULL, &now);
    if (is_in(keep_stack, now.ss_sp)) {
        stack_t none = {.ss_flags = SS_DISABLE};
        plain_stack(&none, NULL);
    }
    for (size_t i = 0; i < sizeof FATAL / sizeof *FATAL; i++)
        keep_sigaction(FATAL[i], &wanted[FATAL[i]], NULL);
}

EXPORT int sigaltstack(const stack_t *restrict to, stack_t *restrict before)
{
    long ret = keep_plain(SYS_sigaltstack, (long)to, (long)before, 0, 0, 0, 0);
    if (ret < 0) {
        errno = (int)-ret;
        return -1;
    }
    if (to && keep_orders)
        __atomic_add_fetch(&keep_news->stacks, 1, __ATOMIC_SEQ_CST);
    return 0;
}

EXPORT int sigaction(int sig, const struct sigaction *action, struct sigaction *before)
{
    if (keep_log && !is_fatal(sig))
        return keep_set_action(sig, action, before);
    if (!keep_orders || !is_fatal(sig))
        return keep_sigaction(sig, action, before);
    struct sigaction was = wanted[sig];
    if (action) {
        wanted[sig] = *action;
        if (install(sig, 1) == -1) {
            wanted[sig] = was;
            return -1;
        }
    }
    if (before)
        *before = was;
    return 0;
}

EXPORT int __sigaction(int sig, const struct sigaction *action, struct sigaction *before)
{
    return sigaction(sig, action, before);
}

static sighandler_t set_handler(int sig, sighandler_t handler, int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, before;
    if (handler == SIG_ERR || sig < 1 || sig > 64) {
        errno = EINVAL;
        return SIG_ERR;
    }
    if (sigaction(sig, &action, &before) == -1)
        return SIG_ERR;
    return before.sa_handler;
}

/* A blocked fault kills at once: blocking these signals has no other use for a thread. Nor do
 * threads block libc's own two, by which it cancels them and changes users. */
static const sigset_t *without_faults(const sigset_t *set, sigset_t *room)
{
    if (!set)
        return set;
    *room = *set;
    *(uint64_t *)room &= ~(3ull << 31);
    if (keep_orders)
        *(uint64_t *)room &= ~KEEP_OPEN_SIGNALS;
    return room;
}

__thread uint64_t keep_seen_blocked __attribute__((tls_model("initial-exec")));

EXPORT int pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    sigset_t room;
    const sigset_t *given = how == SIG_UNBLOCK ? set : without_faults(set, &room);
    /* The kernel's set of signals is the first eight bytes of libc's. */
    uint64_t wanted = set ? *(const uint64_t *)set : 0, seen = keep_seen_blocked;
    sigset_t was = {0};
    long ret = keep_plain(SYS_rt_sigprocmask, how, (long)given, (long)&was, 8, 0, 0);
    if (ret < 0)
        return (int)-ret;
    if (set && how == SIG_UNBLOCK)
        keep_seen_blocked &= ~wanted;
    else if (set && keep_orders)
        keep_seen_blocked = (how == SIG_BLOCK ? seen : 0) | (wanted & KEEP_OPEN_SIGNALS);
    if (before) {
        *before = was;
        *(uint64_t *)before |= seen;
    }
    return 0;
}

EXPORT int sigprocmask(int how, const sigset_t *set, sigset_t *before)
{
    int failed = pthread_sigmask(how, set, before);
    if (!failed)
        return 0;
    errno = failed;
    return -1;
}

EXPORT sighandler_t signal(int sig, sighandler_t handler)
{
    return set_handler(sig, handler, SA_RESTART);
}

EXPORT sighandler_t bsd_signal(int sig, sighandler_t handler)
{
    return signal(sig, handler);
}

EXPORT sighandler_t ssignal(int sig, sighandler_t handler)
{
    return signal(sig, handler);
}

EXPORT sighandler_t sysv_signal(int sig, sighandler_t handler)
{
    return set_handler(sig, handler, SA_RESETHAND | SA_NODEFER);
}

EXPORT sighandler_t __sysv_signal(int sig, sighandler_t handler)
{
    return sysv_signal(sig, handler);
}

/* System V: the handler, or a blocked signal (SIG_HOLD). Answers SIG_HOLD where it was blocked. */
EXPORT sighandler_t sigset(int sig, sighandler_t handler)
{
    sigset_t one, before;
    sigemptyset(&one);
    if (sigaddset(&one, sig) == -1)
        return SIG_ERR;
    struct sigaction was;
    if (handler == SIG_HOLD) {
        if (sigprocmask(SIG_BLOCK, &one, &before) == -1 || sigaction(sig, NULL, &was) == -1)
            return SIG_ERR;
        return sigismember(&before, sig) ? SIG_HOLD : was.sa_handler;
    }
    sighandler_t last = set_handler(sig, handler, 0);
    if (last == SIG_ERR || sigprocmask(SIG_UNBLOCK, &one, &before) == -1)
        return SIG_ERR;
    return sigismember(&before, sig) ? SIG_HOLD : last;
}

EXPORT int sigignore(int sig)
{
    return set_handler(sig, SIG_IGN, 0) == SIG_ERR ? -1 : 0;
}
