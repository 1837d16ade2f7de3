/* Between processes, and special kinds of descriptors. */
#include "objects.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int fd, ends[2], id;
static char bytes[64];
static char *at;

static void pair(int kind)
{
    IS(socketpair(AF_UNIX, kind | SOCK_NONBLOCK, 0, ends) == 0 && write(ends[1], "held", 4) == 4);
}
static void stream_make(void) { pair(SOCK_STREAM); }
static void datagram_make(void) { pair(SOCK_DGRAM); }
static void sequenced_make(void) { pair(SOCK_SEQPACKET); }
static void pair_change(void) { IS(read(ends[0], bytes, sizeof bytes) == 4); }
static void pair_check(void) { IS(read(ends[0], bytes, sizeof bytes) == 4); }
static void unused_change(void) { bytes[0] = 1; }
static void pair_unused_check(void) { IS(bytes[0] == 0 && read(ends[0], bytes, sizeof bytes) == 4); }

static struct sockaddr_in loopback = {.sin_family = AF_INET};
static void listening(int kind)
{
    socklen_t len = sizeof loopback;
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    IS((fd = socket(AF_INET, kind | SOCK_NONBLOCK, 0)) != -1);
    IS(bind(fd, (void *)&loopback, len) == 0 && getsockname(fd, (void *)&loopback, &len) == 0);
}
static void tcp_make(void)
{
    listening(SOCK_STREAM);
    IS(listen(fd, 4) == 0);
}
static void tcp_change(void)
{
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    IS(connect(ends[0], (void *)&loopback, sizeof loopback) == 0 && accept(fd, NULL, NULL) != -1);
}
static void tcp_check(void)
{
    int client = socket(AF_INET, SOCK_STREAM, 0), server;
    IS(connect(client, (void *)&loopback, sizeof loopback) == 0);
    struct pollfd wait = {fd, POLLIN, 0};
    IS(poll(&wait, 1, 10000) == 1 && (server = accept(fd, NULL, NULL)) != -1);
    IS(write(client, "x", 1) == 1 && read(server, bytes, 4) == 1);
}
static void tcp_stream_make(void)
{
    tcp_make();
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    IS(connect(ends[0], (void *)&loopback, sizeof loopback) == 0 && (ends[1] = accept(fd, NULL, NULL)) != -1);
    IS(write(ends[1], "held", 4) == 4);
}
static void tcp_stream_check(void)
{
    IS(recv(ends[0], bytes, sizeof bytes, MSG_DONTWAIT) == 4);
}
static void closed_change(void) { close(fd); }
static void udp_make(void) { listening(SOCK_DGRAM); }
static void udp_change(void) { IS(sendto(fd, "x", 1, 0, (void *)&loopback, sizeof loopback) == 1); }
static void udp_check(void) { IS(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) == -1); }
/* A port that is bound after the checkpoint can be bound again. */
static void bound_make(void)
{
    listening(SOCK_STREAM);
    close(fd);
}
static void bound_change(void)
{
    IS((fd = socket(AF_INET, SOCK_STREAM, 0)) != -1 && bind(fd, (void *)&loopback, sizeof loopback) == 0 && listen(fd, 4) == 0);
}
static void bound_check(void) { bound_change(); }
static const struct sockaddr_un NAME = {.sun_family = AF_UNIX, .sun_path = "socket"};
static void unix_make(void)
{
    IS((fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0)) != -1 && bind(fd, (void *)&NAME, sizeof NAME) == 0 && listen(fd, 4) == 0);
}
static void unix_check(void)
{
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    IS(bytes[0] == 0 && connect(client, (void *)&NAME, sizeof NAME) == 0 && accept(fd, NULL, NULL) != -1);
}
static void netlink_make(void) { IS((fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)) != -1); }
static void netlink_check(void) { IS(bytes[0] == 0 && fcntl(fd, F_GETFD) != -1); }

static void shm_make(void)
{
    NEEDS((id = shmget(IPC_PRIVATE, 4096, 0600 | IPC_CREAT)) != -1);
    at = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    IS(at != (void *)-1);
    at[0] = 'a';
}
static void shm_change(void) { at[0] = 'b'; }
static void shm_check(void) { IS(at[0] == 'a'); }
static void sem_make(void)
{
    NEEDS((id = semget(IPC_PRIVATE, 1, 0600 | IPC_CREAT)) != -1);
    IS(semctl(id, 0, SETVAL, 5) == 0);
}
static void sem_change(void)
{
    struct sembuf down = {0, -2, 0};
    IS(semop(id, &down, 1) == 0);
}
static void sem_check(void)
{
    int now = semctl(id, 0, GETVAL);
    semctl(id, 0, IPC_RMID);
    IS(now == 5);
}
static struct { long type; char text[8]; } message = {1, "held"};
static void msg_make(void)
{
    NEEDS((id = msgget(IPC_PRIVATE, 0600 | IPC_CREAT)) != -1);
    IS(msgsnd(id, &message, 8, IPC_NOWAIT) == 0);
}
static void msg_change(void) { IS(msgrcv(id, &message, 8, 0, IPC_NOWAIT) == 8); }
static void msg_check(void)
{
    long n = msgrcv(id, &message, 8, 0, IPC_NOWAIT);
    msgctl(id, IPC_RMID, NULL);
    IS(n == 8);
}
static char queue_name[64];
static void mq_make(void)
{
    snprintf(queue_name, sizeof queue_name, "/orbit-keep-objects-%d", getpid());
    NEEDS((fd = mq_open(queue_name, O_CREAT | O_RDWR | O_NONBLOCK, 0600, NULL)) != -1);
    mq_unlink(queue_name);
    IS(mq_send(fd, "held", 4, 0) == 0);
}
static void mq_change(void)
{
    static char room[8192];
    IS(mq_receive(fd, room, sizeof room, NULL) == 4);
}
static void mq_check(void) { mq_change(); }

static void uring_make(void)
{
    struct io_uring_params params = {0};
    NEEDS((fd = (int)syscall(SYS_io_uring_setup, 4, &params)) != -1);
}
static void there_check(void) { IS(bytes[0] == 0 && fcntl(fd, F_GETFD) != -1); }
static void uffd_make(void)
{
    struct uffdio_api api = {.api = UFFD_API};
    NEEDS((fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)) != -1 && ioctl(fd, UFFDIO_API, &api) == 0);
}
static void perf_make(void)
{
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_TASK_CLOCK};
    NEEDS((fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0)) != -1);
}
static void pidfd_make(void) { NEEDS((fd = (int)syscall(SYS_pidfd_open, getpid(), 0)) != -1); }
static void pidfd_check(void) { IS(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0); }
static pid_t child;
static void outer_make(void)
{
    IS(pipe(ends) == 0);
    if ((child = fork()) == 0) {
        IS(write(ends[1], "held", 4) == 4);
        while (getppid() != 1)
            usleep(20000);
        _exit(0);
    }
    close(ends[1]);
    while (ioctl(ends[0], FIONREAD, &id) == 0 && id < 4)
        usleep(1000);
}
static void outer_change(void) { IS(read(ends[0], bytes, 4) == 4); }
static void outer_check(void)
{
    int n = 0;
    ioctl(ends[0], FIONREAD, &n);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    IS(n == 4);
}

const struct object_case IPC[] = {
    {"unix-stream", stream_make, pair_change, pair_check},
    {"unix-datagram", datagram_make, pair_change, pair_check},
    {"unix-sequenced", sequenced_make, pair_change, pair_check},
    {"unix-unused", stream_make, unused_change, pair_unused_check},
    {"unix-listening", unix_make, unused_change, unix_check},
    {"unix-closed", unix_make, closed_change, unix_check},
    {"tcp-listening", tcp_make, tcp_change, tcp_check},
    {"tcp-stream", tcp_stream_make, pair_change, tcp_stream_check},
    {"tcp-closed", tcp_make, closed_change, tcp_check},
    {"tcp-bound-since", bound_make, bound_change, bound_check},
    {"udp", udp_make, udp_change, udp_check},
    {"netlink", netlink_make, unused_change, netlink_check},
    {"sysv-shared-memory", shm_make, shm_change, shm_check},
    {"sysv-semaphore", sem_make, sem_change, sem_check},
    {"sysv-messages", msg_make, msg_change, msg_check},
    {"message-queue", mq_make, mq_change, mq_check},
    {"io-uring", uring_make, unused_change, there_check},
    {"userfaultfd", uffd_make, unused_change, there_check},
    {"perf-event", perf_make, unused_change, there_check},
    {"pidfd", pidfd_make, closed_change, pidfd_check},
    {"pipe-to-child", outer_make, outer_change, outer_check},
    {0},
};
