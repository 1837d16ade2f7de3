/* How an input is left out that kills the program. Of a stream the connection ends. A datagram is
 * lost on its way: an empty one in its place would have no sender, and what the program answers
 * would go to that of an earlier one.
 */
#include "own.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static int is_datagram(int fd)
{
    int type = SOCK_STREAM;
    socklen_t length = sizeof type;
    keep_plain(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, (long)&type, (long)&length, 0);
    return type == SOCK_DGRAM || type == SOCK_RAW || type == SOCK_RDM;
}

static int may_wait(const struct keep_call *call)
{
    int flags = call->nr == SYS_recvfrom ? (int)call->arg[3] : call->nr == SYS_recvmsg ? (int)call->arg[2] : 0;
    return !(flags & MSG_DONTWAIT) && !(keep_plain(SYS_fcntl, call->fd, F_GETFL, 0, 0, 0, 0) & O_NONBLOCK);
}

static int has_another(int fd)
{
    char byte;
    return keep_plain(SYS_recvfrom, fd, (long)&byte, 1, MSG_PEEK | MSG_DONTWAIT, 0, 0) != -EAGAIN;
}

int keep_leave_out(const struct keep_call *call, long *ret)
{
    keep_news->dropped_fd = call->fd;
    *ret = 0;
    if (!is_datagram(call->fd))
        return 1;
    /* A server that was woken for this one would wait here for another, and serve nobody else. */
    *ret = -EAGAIN;
    return may_wait(call) && keep_news->has_waited && !has_another(call->fd);
}
