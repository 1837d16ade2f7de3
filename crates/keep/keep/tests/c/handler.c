/* handler FOLDER: a server with one thread on the unix socket FOLDER/socket. It keeps a history:
 * `r` for each request, `1` and `2` for each SIGUSR1 and SIGUSR2 that it has handled (SIGUSR2
 * with SA_RESTART), `a` for a signal that it has sent to itself. Requests are one byte: `h`
 * answers the history, `a` sends itself SIGALRM by kill, `c` crashes, `d` crashes twice and not
 * again: in the replay too, others answer a dot. SIGTERM ends it with status 7 once it is
 * between requests. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char history[65536];
static volatile size_t length;
static volatile sig_atomic_t ends;
static volatile int *volatile nowhere = (volatile int *)8;

static void note(char what)
{
    if (length < sizeof history - 1)
        history[length++] = what;
}

static void on_signal(int sig) { note(sig == SIGUSR1 ? '1' : sig == SIGUSR2 ? '2' : 'a'); }
static void on_end(int sig) { ends = sig; }

static void with(int sig, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(sig, &action, NULL);
}

int main(int argc, char **argv)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
    struct pollfd fds[32] = {{.fd = socket(AF_UNIX, SOCK_STREAM, 0), .events = POLLIN}};
    int used = 1;
    /* Shared memory is not rolled back. */
    volatile int *crashes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc != 2 || chdir(argv[1]) || bind(fds[0].fd, (void *)&name, sizeof name) || listen(fds[0].fd, 8))
        return 2;
    with(SIGUSR1, on_signal, 0);
    with(SIGUSR2, on_signal, SA_RESTART);
    with(SIGALRM, on_signal, SA_RESTART);
    with(SIGTERM, on_end, 0);
    while (!ends) {
        if (poll(fds, used, -1) < 0) {
            if (errno != EINTR)
                return 3;
            continue;
        }
        if (fds[0].revents && used < 32) {
            fds[used].fd = accept(fds[0].fd, NULL, NULL);
            fds[used].events = POLLIN;
            fds[used++].revents = 0;
        }
        for (int i = 1; i < used; i++) {
            char what, answer[2] = ".";
            if (!fds[i].revents)
                continue;
            if (read(fds[i].fd, &what, 1) != 1) {
                close(fds[i].fd);
                fds[i--] = fds[--used];
                continue;
            }
            note('r');
            if (what == 'a') {
                size_t before = length;
                kill(getpid(), SIGALRM);
                if (length == before)
                    return 4; /* handled before the call returns */
            }
            if (what == 'd' && ++*crashes <= 2)
                *nowhere = 1;
            if (what == 'c')
                *nowhere = 1;
            if (what == 'h') {
                if (write(fds[i].fd, history, length) != (ssize_t)length)
                    return 5;
            } else if (write(fds[i].fd, answer, 1) != 1) {
                return 6;
            }
        }
    }
    return 7;
}
