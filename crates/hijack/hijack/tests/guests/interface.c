/*
 * The interface of signals and exec as programs use it. Each part prints a line when it finds
 * something wrong; the result is the number of such lines.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failures;
#define CHECK(what)                                            \
    do {                                                       \
        if (!(what)) failures++, printf("wrong: %s\n", #what); \
    } while (0)

static volatile int hits;
static void *volatile where;
static sigset_t seen;
static sigjmp_buf jump;
/* Addresses that the compiler knows nothing of. */
static char *volatile nowhere = (char *)8, *volatile zero;

static void count(int signal) {
    (void)signal;
    hits++;
    where = &signal;
    sigprocmask(SIG_BLOCK, NULL, &seen);
}

static void leap(int signal) {
    (void)signal;
    siglongjmp(jump, 1);
}

static void set(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(signal, &action, NULL);
}

static void masks(void) {
    sigset_t all, now, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    sigprocmask(SIG_BLOCK, NULL, &now);
    CHECK(sigismember(&now, SIGSYS) == 1);
    CHECK(sigismember(&now, SIGUSR1) == 1);
    sigprocmask(SIG_SETMASK, &before, &now);
    CHECK(sigismember(&now, SIGSYS) == 1);
    sigprocmask(SIG_BLOCK, NULL, &now);
    CHECK(sigismember(&now, SIGSYS) == 0);
    CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, (void *)8, NULL, 8) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_rt_sigprocmask, 77, &all, NULL, 8) == -1 && errno == EINVAL);
}

static void handlers(void) {
    set(SIGUSR1, count, 0);
    hits = 0;
    raise(SIGUSR1);
    CHECK(hits == 1);
    CHECK(sigismember(&seen, SIGUSR1) == 1);
    struct sigaction old;
    sigaction(SIGUSR1, NULL, &old);
    CHECK(old.sa_handler == count);
    set(SIGUSR1, count, SA_NODEFER | SA_RESETHAND);
    raise(SIGUSR1);
    CHECK(sigismember(&seen, SIGUSR1) == 0);
    sigaction(SIGUSR1, NULL, &old);
    CHECK(old.sa_handler == SIG_DFL);
    CHECK(syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, NULL, 8) == -1 && errno == EFAULT);
    CHECK(sigaction(SIGKILL, &old, NULL) == -1 && errno == EINVAL);
}

static void alternate(void) {
    static char memory[65536];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory}, old;
    CHECK(sigaltstack(&stack, NULL) == 0);
    set(SIGUSR1, count, SA_ONSTACK);
    raise(SIGUSR1);
    CHECK((char *)where >= memory && (char *)where < memory + sizeof memory);
    sigaltstack(NULL, &old);
    CHECK(old.ss_sp == memory && old.ss_flags == 0);
    stack.ss_size = 100;
    CHECK(sigaltstack(&stack, NULL) == -1 && errno == ENOMEM);
}

static int deep(int n) {
    volatile char page[4096];
    page[0] = n;
    return n ? deep(n + 1) + page[0] : 0;
}

static void faults(void) {
    set(SIGSEGV, leap, SA_ONSTACK);
    if (!sigsetjmp(jump, 1)) {
        *(volatile int *)nowhere = 1;
        CHECK(0);
    }
    if (!sigsetjmp(jump, 1)) {
        deep(1);
        CHECK(0);
    }
    /* A read of page 0 faults: nothing is mapped there. */
    if (!sigsetjmp(jump, 1)) failures += *(volatile int *)zero + 1;
    set(SIGSEGV, SIG_DFL, 0);
    pid_t child = fork();
    if (!child) *(volatile int *)nowhere = 1, _exit(0);
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void waiting(void) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR2);
    sigprocmask(SIG_BLOCK, &one, NULL);
    set(SIGUSR2, count, 0);
    raise(SIGUSR2);
    int signal = 0;
    sigwait(&one, &signal);
    CHECK(signal == SIGUSR2);
    int fd = signalfd(-1, &one, 0);
    raise(SIGUSR2);
    struct signalfd_siginfo info;
    CHECK(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR2);
    hits = 0;
    raise(SIGUSR2);
    sigset_t none;
    sigemptyset(&none);
    CHECK(sigsuspend(&none) == -1 && errno == EINTR && hits == 1);
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now);
    CHECK(sigismember(&now, SIGUSR2) == 1);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
}

static void restarts(void) {
    int ends[2];
    pipe(ends);
    for (int restart = 0; restart < 2; restart++) {
        set(SIGALRM, count, restart ? SA_RESTART : 0);
        hits = 0;
        pid_t writer = fork();
        if (!writer) {
            /* Writes long after the alarm, which is when the reader is sure to wait. */
            struct timespec late = {0, 300000000};
            nanosleep(&late, NULL);
            _exit(write(ends[1], "x", 1) != 1);
        }
        struct timespec soon = {0, 50000000};
        timer_t timer;
        timer_create(CLOCK_MONOTONIC, NULL, &timer);
        timer_settime(timer, 0, &(struct itimerspec){.it_value = soon}, NULL);
        char byte;
        long result = read(ends[0], &byte, 1);
        CHECK(hits == 1);
        if (restart) CHECK(result == 1);
        else CHECK(result == -1 && errno == EINTR);
        waitpid(writer, NULL, 0);
        if (!restart) read(ends[0], &byte, 1);
        timer_delete(timer);
    }
}

static void execs(const char *self) {
    CHECK(execve("/nonexistent", (char *[]){"x", NULL}, NULL) == -1 && errno == ENOENT);
    CHECK(execve("/etc/passwd", (char *[]){"x", NULL}, NULL) == -1 && errno == EACCES);
    CHECK(execve("/", (char *[]){"x", NULL}, NULL) == -1 && errno == EACCES);
    CHECK(execve(nowhere, (char *[]){"x", NULL}, NULL) == -1 && errno == EFAULT);
    int status;
    pid_t child = fork();
    if (!child) {
        char *empty[] = {NULL};
        int fd = open(self, O_RDONLY | O_CLOEXEC);
        fexecve(fd, (char *[]){"self", "7", NULL}, empty);
        _exit(1);
    }
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    char *arguments[] = {(char *)self, "8", NULL};
    CHECK(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0);
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 8);
    char path[4096] = {0};
    CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0 && strcmp(path, self) == 0);
    child = vfork();
    if (!child) execv("/proc/self/exe", (char *[]){"self", "9", NULL}), _exit(1);
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 9);
}

int main(int argc, char **argv) {
    if (argc == 2 && atoi(argv[1])) return atoi(argv[1]);
    char self[4096];
    realpath(argv[0], self);
    masks();
    handlers();
    alternate();
    faults();
    waiting();
    restarts();
    execs(self);
    printf("failures %d\n", failures);
    return failures;
}
