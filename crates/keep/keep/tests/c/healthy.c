/* Calls of a program that nothing is wrong with: each must do under a keeper what it does without.
 * Prints a line for each that does not, and ends with 7. Waits for input before, so that a keeper
 * has its first checkpoint. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

static int pair[2];
static int failed;

static void expect(const char *what, long is, long wanted)
{
    if (is == wanted)
        return;
    failed = 1;
    printf("%s: %ld, not %ld\n", what, is, wanted);
}

static void pieces(int count)
{
    char from[64], to[64];
    struct iovec iov[64];
    for (int i = 0; i < count; i++) {
        from[i] = (char)(i + 1);
        iov[i] = (struct iovec){to + i, 1};
    }
    memset(to, 0, sizeof to);
    expect("send", send(pair[0], from, (size_t)count, 0), count);
    expect("readv of many pieces", readv(pair[1], iov, count), count);
    expect("readv's bytes", memcmp(from, to, (size_t)count), 0);
    memset(to, 0, sizeof to);
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    expect("send", send(pair[0], from, (size_t)count, 0), count);
    expect("recvmsg of many pieces", recvmsg(pair[1], &message, 0), count);
    expect("recvmsg's bytes", memcmp(from, to, (size_t)count), 0);
}

static void *waits(void *arg)
{
    char byte;
    (void)arg;
    sigset_t all, now;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    expect("a fault that is blocked, as its mask has it", sigismember(&now, SIGSEGV), 1);
    return (void *)read(pair[0], &byte, 1);
}

static volatile sig_atomic_t handled;
static void on_signal(int sig) { handled = sig; }

/* Handlers of signals that are sent, one of them for once: the program continues after each. */
static void signals(void)
{
    struct sigaction action = {.sa_handler = on_signal}, now;
    sigaction(SIGFPE, &action, NULL);
    raise(SIGFPE);
    expect("the handler of a fault that was sent", handled, SIGFPE);
    action.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGILL, &action, NULL);
    raise(SIGILL);
    expect("a handler for once", handled, SIGILL);
    sigaction(SIGILL, NULL, &now);
    expect("it was for once", now.sa_handler == SIG_DFL, 1);
}

/* Nobody sends: the socket's own time limit, longer than the time between two checkpoints, ends
 * the wait. */
static void limit_of_a_socket(void)
{
    char byte;
    struct timeval limit = {0, 500000};
    setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    expect("a receive with a time limit", recv(pair[1], &byte, 1, 0), -1);
    expect("its error", errno, EAGAIN);
}

int main(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0 || poll(&input, 1, -1) != 1)
        return 1;
    pieces(6);
    pieces(7);
    pieces(64);
    struct iovec none[1] = {{&input, 0}};
    expect("readv of too many pieces", readv(pair[1], none, 1025), -1);
    expect("its error", errno, EINVAL);
    /* A thread that has blocked all signals is changed in its user, and cancelled. */
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, waits, NULL);
    expect("setuid", setuid(getuid()), 0);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    expect("a cancelled thread", (long)result, (long)PTHREAD_CANCELED);
    signals();
    limit_of_a_socket();
    return failed ? 1 : 7;
}
