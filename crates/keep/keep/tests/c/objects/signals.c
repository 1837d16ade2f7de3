/* Signals and timers. */
#include "objects.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int by_a, by_b;
static void a(int sig) { by_a = sig; }
static void b(int sig) { by_b = sig; }

static void with(int sig, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    IS(sigaction(sig, &action, NULL) == 0);
}
static sigset_t set_of(int sig)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, sig);
    return set;
}
static void block(int sig, int how)
{
    sigset_t set = set_of(sig);
    IS(pthread_sigmask(how, &set, NULL) == 0);
}
static int is_pending(int sig)
{
    sigset_t set;
    return sigpending(&set) == 0 && sigismember(&set, sig);
}

static void handler_make(void) { with(SIGUSR1, a, 0); }
static void handler_change(void) { with(SIGUSR1, b, SA_RESTART); }
static void handler_check(void)
{
    struct sigaction now;
    raise(SIGUSR1);
    IS(by_a == SIGUSR1 && by_b == 0 && sigaction(SIGUSR1, NULL, &now) == 0 && !(now.sa_flags & SA_RESTART));
}
static void default_change(void) { with(SIGUSR1, SIG_DFL, 0); }
static void from_default_make(void) {}
static void from_default_change(void) { with(SIGWINCH, b, 0); }
static void from_default_check(void)
{
    raise(SIGWINCH);
    IS(by_b == 0);
}
static void ignored_make(void) { with(SIGTERM, SIG_IGN, 0); }
static void ignored_change(void) { with(SIGTERM, SIG_DFL, 0); }
static void ignored_check(void) { raise(SIGTERM); }
static void realtime_make(void) { with(SIGRTMAX, a, 0); }
static void realtime_change(void) { with(SIGRTMAX, b, 0); }
static void realtime_check(void)
{
    raise(SIGRTMAX);
    IS(by_a == SIGRTMAX && !by_b);
}
static void fatal_make(void) { with(SIGFPE, a, 0); }
static void fatal_change(void) { with(SIGFPE, b, 0); }
static void fatal_check(void)
{
    raise(SIGFPE);
    IS(by_a == SIGFPE && !by_b);
}
static void action_mask_make(void)
{
    struct sigaction action = {.sa_handler = a, .sa_mask = set_of(SIGUSR2)};
    IS(sigaction(SIGUSR1, &action, NULL) == 0);
}
static void action_mask_check(void)
{
    struct sigaction now;
    IS(sigaction(SIGUSR1, NULL, &now) == 0 && now.sa_handler == a && sigismember(&now.sa_mask, SIGUSR2));
}

static void mask_make(void) { block(SIGUSR1, SIG_BLOCK); }
static void mask_change(void)
{
    block(SIGUSR1, SIG_UNBLOCK);
    block(SIGUSR2, SIG_BLOCK);
}
static void mask_check(void)
{
    sigset_t now;
    IS(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0 && sigismember(&now, SIGUSR1) && !sigismember(&now, SIGUSR2));
}

/* A stack for signals: where the handler ran is seen by the address of a local. */
static char first_stack[65536], second_stack[65536];
static const char *volatile ran_at;
static void where(int sig)
{
    char here = (char)sig;
    ran_at = &here;
}
static int was_on(const char *stack) { return ran_at >= stack && ran_at < stack + sizeof first_stack; }
static void set_stack(char *stack)
{
    stack_t to = {.ss_sp = stack, .ss_size = sizeof first_stack};
    IS(sigaltstack(&to, NULL) == 0);
}
static void stack_make(void)
{
    set_stack(first_stack);
    with(SIGUSR1, where, SA_ONSTACK);
}
static void stack_change(void) { set_stack(second_stack); }
static void stack_off_change(void)
{
    stack_t off = {.ss_flags = SS_DISABLE};
    IS(sigaltstack(&off, NULL) == 0);
}
static void stack_check(void)
{
    raise(SIGUSR1);
    IS(was_on(first_stack));
}

/* The same in a thread, which does what `step` says. */
static volatile int step, done;
static pthread_t thread;
static void *with_stack(void *of)
{
    set_stack(first_stack);
    done = 1;
    while (step < 1)
        usleep(500);
    if (step == 1)
        set_stack(second_stack);
    done = 2;
    while (step < 2)
        usleep(500);
    raise(SIGUSR1);
    return of;
}
static void until_done(int n)
{
    while (done != n)
        usleep(500);
}
static void thread_stack_make(void)
{
    with(SIGUSR1, where, SA_ONSTACK);
    IS(pthread_create(&thread, NULL, with_stack, NULL) == 0);
    until_done(1);
}
static void thread_stack_change(void)
{
    step = 1;
    until_done(2);
}
static void thread_stack_check(void)
{
    step = 2;
    pthread_join(thread, NULL);
    IS(was_on(first_stack));
}
static void thread_ended_change(void)
{
    step = 2;
    pthread_join(thread, NULL);
    ran_at = NULL;
}
static void thread_ended_check(void)
{
    IS(done == 1);
    thread_stack_check();
}

static void pending_make(void)
{
    with(SIGUSR1, a, 0);
    block(SIGUSR1, SIG_BLOCK);
    kill(getpid(), SIGUSR1);
    IS(is_pending(SIGUSR1));
}
static void pending_change(void)
{
    block(SIGUSR1, SIG_UNBLOCK);
    IS(by_a == SIGUSR1);
}
static void pending_check(void)
{
    IS(by_a == 0 && is_pending(SIGUSR1));
    block(SIGUSR1, SIG_UNBLOCK);
    IS(by_a == SIGUSR1);
}
static void pending_thread_make(void)
{
    with(SIGUSR1, a, 0);
    block(SIGUSR1, SIG_BLOCK);
    pthread_kill(pthread_self(), SIGUSR1);
}
static void pending_new_make(void)
{
    with(SIGUSR1, a, 0);
    block(SIGUSR1, SIG_BLOCK);
}
static void pending_new_change(void) { kill(getpid(), SIGUSR1); }
static void pending_new_check(void) { IS(!is_pending(SIGUSR1)); }
static void queued_make(void)
{
    block(SIGRTMIN + 3, SIG_BLOCK);
    for (int i = 0; i < 3; i++)
        IS(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 40 + i}) == 0);
}
static void queued_change(void)
{
    sigset_t set = set_of(SIGRTMIN + 3);
    IS(sigwaitinfo(&set, NULL) > 0 && sigwaitinfo(&set, NULL) > 0 && sigwaitinfo(&set, NULL) > 0);
}
static void queued_check(void)
{
    sigset_t set = set_of(SIGRTMIN + 3);
    const struct timespec none = {0, 0};
    siginfo_t info;
    for (int i = 0; i < 3; i++)
        IS(sigtimedwait(&set, &info, &none) > 0 && info.si_value.sival_int == 40 + i && info.si_code == SI_QUEUE);
}

static const struct itimerval LATER = {.it_value = {1000, 0}, .it_interval = {7, 0}}, OFF = {{0}};
static int which;
static void itimer_change(void) { IS(setitimer(which, &OFF, NULL) == 0); }
static void itimer_check(void)
{
    struct itimerval now;
    IS(getitimer(which, &now) == 0 && now.it_value.tv_sec > 900 && now.it_interval.tv_sec == 7);
}
static void itimer_real_make(void) { IS(setitimer(which = ITIMER_REAL, &LATER, NULL) == 0); }
static void itimer_virtual_make(void) { IS(setitimer(which = ITIMER_VIRTUAL, &LATER, NULL) == 0); }
static void itimer_prof_make(void) { IS(setitimer(which = ITIMER_PROF, &LATER, NULL) == 0); }
static void alarm_make(void) { with(SIGALRM, a, 0); }
static void alarm_change(void) { alarm(1000); }
static void alarm_check(void) { IS(alarm(0) == 0); }

static timer_t timer;
static const struct itimerspec TIMER_LATER = {.it_value = {1000, 0}, .it_interval = {7, 0}}, TIMER_OFF = {0};
static void timer_make(void)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 99};
    with(SIGUSR1, a, 0);
    IS(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &TIMER_LATER, NULL) == 0);
}
static void timer_change(void) { IS(timer_settime(timer, 0, &TIMER_OFF, NULL) == 0); }
static void timer_check(void)
{
    struct itimerspec now;
    IS(timer_gettime(timer, &now) == 0 && now.it_value.tv_sec > 900 && now.it_interval.tv_sec == 7);
}
static void timer_deleted_change(void) { IS(timer_delete(timer) == 0); }
static void timer_fires_check(void)
{
    const struct itimerspec soon = {.it_value = {0, 1000}};
    timer_check();
    IS(timer_settime(timer, 0, &soon, NULL) == 0);
    while (!by_a)
        usleep(1000);
}
static void timer_new_make(void) { with(SIGUSR1, a, 0); }
static void timer_new_check(void)
{
    /* One of the same number is not there. */
    struct itimerspec now;
    IS(timer_gettime((timer_t)0, &now) == -1);
}

const struct object_case SIGNALS[] = {
    {"action-changed", handler_make, handler_change, handler_check},
    {"action-to-default", handler_make, default_change, handler_check},
    {"action-from-default", from_default_make, from_default_change, from_default_check},
    {"action-ignored", ignored_make, ignored_change, ignored_check},
    {"action-realtime", realtime_make, realtime_change, realtime_check},
    {"action-fatal", fatal_make, fatal_change, fatal_check},
    {"action-mask", action_mask_make, handler_change, action_mask_check},
    {"mask", mask_make, mask_change, mask_check},
    {"signal-stack", stack_make, stack_change, stack_check},
    {"signal-stack-off", stack_make, stack_off_change, stack_check},
    {"signal-stack-thread", thread_stack_make, thread_stack_change, thread_stack_check},
    {"signal-stack-thread-ended", thread_stack_make, thread_ended_change, thread_ended_check},
    {"pending", pending_make, pending_change, pending_check},
    {"pending-thread", pending_thread_make, pending_change, pending_check},
    {"pending-since", pending_new_make, pending_new_change, pending_new_check},
    {"pending-queued", queued_make, queued_change, queued_check},
    {"itimer-real", itimer_real_make, itimer_change, itimer_check},
    {"itimer-virtual", itimer_virtual_make, itimer_change, itimer_check},
    {"itimer-prof", itimer_prof_make, itimer_change, itimer_check},
    {"alarm-since", alarm_make, alarm_change, alarm_check},
    {"timer", timer_make, timer_change, timer_check},
    {"timer-deleted", timer_make, timer_deleted_change, timer_fires_check},
    {"timer-since", timer_new_make, timer_make, timer_new_check},
    {0},
};
