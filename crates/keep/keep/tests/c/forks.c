/* forks FOLDER: computes until FOLDER/go is there, then makes twenty children. While each is made a
 * signal comes that it handles. A child makes calls that are logged, and answers by a pipe. Ends
 * with 5, if each has answered and each signal was handled once, by the parent. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t handled;

static void handle(int sig)
{
    handled += sig == SIGUSR1;
}

static void signalled(void)
{
    syscall(SYS_kill, getpid(), SIGUSR1);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = handle};
    int ends[2], status;
    char byte;
    if (argc != 2 || chdir(argv[1]) == -1 || sigaction(SIGUSR1, &action, NULL) == -1)
        return 2;
    poll(NULL, 0, 1);
    while (access("go", F_OK) == -1)
        usleep(1000);
    pthread_atfork(signalled, NULL, NULL);
    for (int i = 0; i < 20; i++) {
        if (pipe(ends) == -1)
            return 3;
        pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            byte = (char)handled;
            _exit(write(ends[1], &byte, 1) == 1 ? 0 : 1);
        }
        close(ends[1]);
        struct pollfd answer = {.fd = ends[0], .events = POLLIN};
        int came = 0;
        for (int n = 0; n < 600 && came != 1; n++)
            came = poll(&answer, 1, 100);
        if (came != 1) {
            kill(child, SIGKILL);
            return 4;
        }
        if (read(ends[0], &byte, 1) != 1 || waitpid(child, &status, 0) != child || status != 0)
            return 6;
        close(ends[0]);
    }
    return handled == 20 ? 5 : 7;
}
