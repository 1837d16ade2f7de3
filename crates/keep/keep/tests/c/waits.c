/* waits SOCKET: answers each byte on its connections with a count of all bytes so far; 'p' crashes,
 * 'w' waits on no descriptor for ever. Waits by poll, ppoll and pselect in turn; compiled with
 * checks (_FORTIFY_SOURCE), so that the checking forms of poll, open, pread and recvfrom are
 * called. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* An address where nothing is mapped; the compiler must not know it. */
static volatile int *volatile nowhere = (volatile int *)8;

/* The compiler must not know that it is in bounds. */
static volatile size_t one = 1;

static struct pollfd fds[8];
static nfds_t count = 1;

static void wait_for_any(unsigned round)
{
    const struct timespec time = {0, 20000000};
    if (round % 3 == 0) {
        poll(fds, count, 20);
    } else if (round % 3 == 1) {
        ppoll(fds, count, &time, NULL);
    } else {
        fd_set in;
        FD_ZERO(&in);
        for (nfds_t i = 0; i < count; i++)
            FD_SET(fds[i].fd, &in);
        int ready = pselect(64, &in, NULL, NULL, &time, NULL);
        for (nfds_t i = 0; i < count; i++)
            fds[i].revents = ready > 0 && FD_ISSET(fds[i].fd, &in) ? POLLIN : 0;
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    unsigned char bytes = 0;
    if (argc != 2)
        return 2;
    strncpy(name.sun_path, argv[1], sizeof name.sun_path - 1);
    fds[0] = (struct pollfd){socket(AF_UNIX, SOCK_STREAM, 0), POLLIN, 0};
    if (bind(fds[0].fd, (struct sockaddr *)&name, sizeof name) == -1 || listen(fds[0].fd, 8) == -1)
        return 3;
    for (unsigned round = 0;; round++) {
        wait_for_any(round);
        if (fds[0].revents && count < 8)
            fds[count++] = (struct pollfd){accept(fds[0].fd, NULL, NULL), POLLIN, 0};
        for (nfds_t i = 1; i < count; i++) {
            char byte, other;
            if (!fds[i].revents)
                continue;
            if (recvfrom(fds[i].fd, &byte, one, 0, NULL, NULL) <= 0) {
                close(fds[i].fd);
                fds[i] = fds[--count];
                break;
            }
            if (byte == 'p')
                *nowhere = 1;
            while (byte == 'w') {
                struct epoll_event event;
                epoll_wait(-1, &event, 1, 20);
            }
            int file = open("/dev/zero", O_RDONLY | (int)(one - 1));
            if (file == -1 || pread(file, &other, one, 0) != 1 || close(file) == -1)
                return 5;
            bytes++;
            if (write(fds[i].fd, &bytes, 1) != 1)
                return 4;
        }
    }
}
