/* overrides: has functions for signals of its own, each of which passes on to the library's other
 * name for the same, as Erlang's virtual machine does. It makes a child by a raw clone, as vsftpd
 * does. Ends with 5. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern int __sigaction(int sig, const struct sigaction *action, struct sigaction *before);
extern sighandler_t __sysv_signal(int sig, sighandler_t handler);

static volatile sig_atomic_t handled;

static void handle(int sig)
{
    handled += sig == SIGUSR1 || sig == SIGUSR2;
}

int sigaction(int sig, const struct sigaction *action, struct sigaction *before)
{
    return __sigaction(sig, action, before);
}

sighandler_t sysv_signal(int sig, sighandler_t handler)
{
    return __sysv_signal(sig, handler);
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    int (*next)(int, const sigset_t *, sigset_t *) =
        (int (*)(int, const sigset_t *, sigset_t *))dlsym(RTLD_NEXT, "sigprocmask");
    return next(how, set, before);
}

int main(void)
{
    struct sigaction action = {.sa_handler = handle}, fault;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigaction(SIGSEGV, NULL, &fault);
    sigaction(SIGUSR1, &action, NULL);
    sysv_signal(SIGUSR2, handle);
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    raise(SIGUSR1);
    raise(SIGUSR2);
    if (handled != 1)
        return 1;
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    int status;
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, NULL, &fault) == 0 ? 0 : 1);
    if (child == -1 || waitpid(child, &status, 0) != child || status != 0)
        return 3;
    return handled == 2 && fault.sa_handler == SIG_DFL ? 5 : 2;
}
