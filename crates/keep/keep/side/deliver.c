/* Signals that the program handles, where its calls are logged: a handler runs between logged
 * calls, and the log says where, so that a replay runs it there.
 *
 * A signal of the serving thread waits in a queue that no rollback touches until the call that it
 * has interrupted, or the next one, begins or ends. A call that waits is cut short for that. What
 * the thread sends to itself (raise) comes again in a replay, and is handled at once.
 */
#include "own.h"
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>
#include <unistd.h>

/* What the program asked for, by signal. Rolled back with it. */
static struct sigaction asked[65];

struct keep_signals *keep_signals;
__thread int keep_signals_wait __attribute__((tls_model("initial-exec")));

/* Labels of keep_raw: its start, and where it answers that a handler is to run first. */
extern char keep_raw_begin[] HIDDEN, keep_signalled[] HIDDEN;

static void run_handler(int sig, siginfo_t *info, void *context)
{
    struct sigaction action = asked[sig];
    uint64_t mask = *(uint64_t *)&action.sa_mask & ~KEEP_OPEN_SIGNALS, before = 0;
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)
        return;
    if (!(action.sa_flags & SA_NODEFER))
        mask |= 1ull << (sig - 1);
    if (action.sa_flags & SA_RESETHAND) {
        memset(&asked[sig], 0, sizeof asked[sig]);
        keep_sigaction(sig, &asked[sig], NULL);
    }
    int saved = errno;
    keep_plain(SYS_rt_sigprocmask, SIG_BLOCK, (long)&mask, (long)&before, 8, 0, 0);
    if (action.sa_flags & SA_SIGINFO)
        action.sa_sigaction(sig, info, context);
    else
        action.sa_handler(sig);
    keep_plain(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, 8, 0, 0);
    errno = saved;
}

void keep_handle(const struct keep_waiting *waiting)
{
    struct keep_waiting copy = *waiting;
    /* Where it was when the signal came is not known any more. */
    static ucontext_t nowhere;
    run_handler((int)copy.signal, (siginfo_t *)copy.info, &nowhere);
}

int keep_take_signal(struct keep_waiting *to)
{
    keep_signals_wait = 0;
    if (keep_signals->taken == keep_signals->come)
        return 0;
    *to = keep_signals->waiting[keep_signals->taken % KEEP_SIGNALS];
    __atomic_store_n(&keep_signals->taken, keep_signals->taken + 1, __ATOMIC_SEQ_CST);
    return to->signal >= 1 && to->signal <= 64;
}

int keep_put_signal(int sig, const void *info)
{
    uint32_t come = keep_signals->come;
    if (come - keep_signals->taken >= KEEP_SIGNALS)
        return 0;
    struct keep_waiting *to = &keep_signals->waiting[come % KEEP_SIGNALS];
    to->signal = (uint64_t)sig;
    memcpy(to->info, info, sizeof to->info);
    __atomic_store_n(&keep_signals->come, come + 1, __ATOMIC_SEQ_CST);
    return 1;
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
    int own = (int)keep_plain(SYS_getpid, 0, 0, 0, 0, 0, 0);
    int is_of_itself = info->si_code == SI_TKILL && info->si_pid == own;
    /* A child between its fork and keep_forget does not have the log's memory. */
    if (own != keep_own_pid || !keep_is_logging() || is_of_itself || !keep_put_signal(sig, info)) {
        uint64_t interrupted = *(uint64_t *)&((ucontext_t *)context)->uc_sigmask;
        keep_plain(SYS_rt_sigprocmask, SIG_SETMASK, (long)&interrupted, 0, 8, 0, 0);
        run_handler(sig, info, context);
        return;
    }
    keep_signals_wait = 1;
    /* A call that is about to be made, or that the kernel would make again, waits for the
     * handler. */
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    char *at = (char *)regs[REG_RIP];
    if (at > keep_raw_begin && at <= keep_syscall)
        regs[REG_RIP] = (greg_t)keep_signalled;
}

int keep_set_action(int sig, const struct sigaction *action, struct sigaction *before)
{
    struct sigaction was = asked[sig], kernels;
    if (keep_sigaction(sig, NULL, &kernels) == -1)
        return -1;
    int is_ours = (void *)kernels.sa_sigaction == (void *)on_signal;
    if (action) {
        struct sigaction real = *action;
        if (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN) {
            real.sa_sigaction = on_signal;
            real.sa_flags = SA_SIGINFO | (action->sa_flags & (SA_RESTART | SA_ONSTACK | SA_NOCLDSTOP | SA_NOCLDWAIT));
            sigfillset(&real.sa_mask);
            sigdelset(&real.sa_mask, SIGSEGV);
            sigdelset(&real.sa_mask, SIGBUS);
            sigdelset(&real.sa_mask, SIGILL);
            sigdelset(&real.sa_mask, SIGFPE);
            sigdelset(&real.sa_mask, SIGABRT);
            sigdelset(&real.sa_mask, SIGSYS);
        }
        asked[sig] = *action;
        if (keep_sigaction(sig, &real, NULL) == -1) {
            asked[sig] = was;
            return -1;
        }
    }
    if (before)
        *before = is_ours ? was : kernels;
    return 0;
}

/* In a child that is not kept, or without a log: the program's own handlers. */
void keep_own_actions(void)
{
    for (int sig = 1; sig <= 64; sig++) {
        struct sigaction kernels;
        if (keep_sigaction(sig, NULL, &kernels) == 0 && (void *)kernels.sa_sigaction == (void *)on_signal)
            keep_sigaction(sig, &asked[sig], NULL);
    }
}

static int waits(long nr, long a, long b)
{
    long ret = keep_logged(&(struct keep_call){.nr = nr, .log_nr = (uint32_t)nr, .arg = {a, b}, .is_fresh = 1});
    errno = (int)-ret;
    return -1;
}

EXPORT int sigsuspend(const sigset_t *mask)
{
    return waits(SYS_rt_sigsuspend, (long)mask, 8);
}

EXPORT int pause(void)
{
    return waits(SYS_pause, 0, 0);
}
