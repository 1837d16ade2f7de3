/* replaced HOW FOLDER: sets the default action of SIGSEGV by HOW (sigset, ssignal, sysv, raw), then
 * computes until FOLDER/crash is there, which it has only seen; once it is put back it is gone, and
 * it ends with 7. "spawn": executes a shell that sends itself SIGTRAP, ignored from the start, and
 * ends with that one's status. */
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
extern sighandler_t __sysv_signal(int sig, sighandler_t handler);
extern sighandler_t sigset(int sig, sighandler_t handler);

static volatile int *volatile nowhere = (volatile int *)8;

int main(int argc, char **argv)
{
    if (argc != 3 || chdir(argv[2]) == -1)
        return 2;
    struct {
        void *handler;
        unsigned long flags;
        void *end;
        unsigned long mask;
    } none = {SIG_DFL, 0, NULL, 0};
    if (!strcmp(argv[1], "sigset"))
        sigset(SIGSEGV, SIG_DFL);
    else if (!strcmp(argv[1], "ssignal"))
        ssignal(SIGSEGV, SIG_DFL);
    else if (!strcmp(argv[1], "sysv"))
        __sysv_signal(SIGSEGV, SIG_DFL);
    else if (!strcmp(argv[1], "raw"))
        syscall(SYS_rt_sigaction, SIGSEGV, &none, NULL, 8);
    /* Its start is over. */
    poll(NULL, 0, 1);
    while (access("ready", F_OK) == -1)
        usleep(1000);
    if (!strcmp(argv[1], "spawn")) {
        pid_t child;
        int status;
        char *list[] = {"sh", "-c", "kill -TRAP $$; exit 7", NULL};
        if (posix_spawn(&child, "/bin/sh", NULL, NULL, list, environ) || waitpid(child, &status, 0) == -1)
            return 3;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
    }
    while (access("crash", F_OK) == -1)
        usleep(1000);
    if (access("done", F_OK) == -1)
        *nowhere = 1;
    return 7;
}
