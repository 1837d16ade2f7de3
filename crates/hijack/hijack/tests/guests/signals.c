/* Real-time signals at random moments to a thread that checks the result of every call.
 * Arguments: how many. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t got, wrong;
static volatile int stop;
static pthread_t target;
static int sent;

static void handle(int signal, siginfo_t *info, void *context) {
    int before = errno;
    (void)signal, (void)context;
    /* Each signal carries its number: none may come twice or out of turn with others of its
     * kind. */
    static int last[4];
    int kind = signal - SIGRTMIN;
    if (info->si_value.sival_int <= last[kind]) wrong++;
    last[kind] = info->si_value.sival_int;
    got++;
    if (getpid() != (pid_t)syscall(SYS_getpid)) wrong++;
    errno = before;
}

static void *send(void *argument) {
    unsigned random = 12345;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < atoi(argument); i++) {
        union sigval value = {.sival_int = i + 1};
        while (pthread_sigqueue(target, SIGRTMIN + random % 4, value)) sched_yield();
        sent++;
        random = random * 1103515245 + 12345;
        struct timespec pause = {0, (random >> 16) % 90000};
        nanosleep(&pause, NULL);
    }
    stop = 1;
    return NULL;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_RESTART};
    action.sa_sigaction = handle;
    /* A signal sent earlier is delivered earlier only among one kind: no nesting. */
    sigfillset(&action.sa_mask);
    for (int i = 0; i < 4; i++) sigaction(SIGRTMIN + i, &action, NULL);
    target = pthread_self();
    pthread_t sender;
    pthread_create(&sender, NULL, send, argv[argc - 1]);
    pid_t parent = getppid(), self = getpid();
    long loops = 0, bad = 0;
    int ends[2];
    pipe(ends);
    char byte[8];
    while (!stop) {
        struct timespec nap = {0, 1000};
        sigset_t old, one;
        bad += syscall(SYS_getppid) != parent;
        bad += getpid() != self;
        bad += read(-1, byte, 1) != -1 || errno != EBADF;
        bad += write(ends[1], "x", 1) != 1;
        bad += read(ends[0], byte, 1) != 1 || byte[0] != 'x';
        bad += nanosleep(&nap, NULL) && errno != EINTR;
        sigemptyset(&one);
        sigaddset(&one, SIGUSR1);
        bad += sigprocmask(SIG_BLOCK, &one, &old) != 0;
        bad += sigprocmask(SIG_SETMASK, &old, NULL) != 0;
        loops++;
    }
    pthread_join(sender, NULL);
    printf("loops %ld bad %ld wrong %d sent %d got %d\n", loops, bad, wrong, sent, got);
    return bad || wrong || sent != got;
}
