/* Calls with addresses at which natively nothing is, and under the executive its own memory: their
 * errors. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRY(name, ...)                                                                                \
    do {                                                                                              \
        errno = 0;                                                                                    \
        long result = syscall(__VA_ARGS__);                                                           \
        printf(" %s=%s", name, result == -1 ? strerrorname_np(errno) : result ? "passed" : "0");      \
    } while (0)

/* Natively a message is taken, and lost. */
static void refill(int *pair) {
    char byte;
    while (recv(pair[0], &byte, 1, MSG_DONTWAIT) > 0) {}
    send(pair[1], "abcdefgh", 8, 0);
}

static void messages(char *at, int *pair) {
    struct iovec there = {at, 8};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &there, .msg_iovlen = 1}};
    refill(pair);
    TRY("recvfrom", SYS_recvfrom, pair[0], at, 8, 0, 0, 0);
    refill(pair);
    TRY("recvmsg", SYS_recvmsg, pair[0], at, 0);
    TRY("recvmsg-buffer", SYS_recvmsg, pair[0], &message, MSG_DONTWAIT);
    refill(pair);
    TRY("recvmmsg", SYS_recvmmsg, pair[0], &message, 1, MSG_DONTWAIT, 0);
    TRY("getsockname", SYS_getsockname, pair[0], at, at);
    TRY("getsockopt", SYS_getsockopt, pair[0], SOL_SOCKET, SO_TYPE, at, at);
    TRY("socketpair", SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, at);
}

static void buffers(char *at) {
    int zero = open("/dev/zero", O_RDONLY), folder = open("/", O_RDONLY), ends[2];
    struct iovec there = {at, 8};
    char here[8];
    struct iovec local = {here, 8};
    TRY("read", SYS_read, zero, at, 8);
    TRY("pread", SYS_pread64, zero, at, 8, 0);
    TRY("readv", SYS_readv, zero, &there, 1);
    TRY("readv-array", SYS_readv, zero, at, 1);
    TRY("preadv", SYS_preadv, zero, &there, 1, 0, 0);
    TRY("preadv2", SYS_preadv2, zero, &there, 1, 0, 0, 0);
    TRY("getrandom", SYS_getrandom, at, 8, 0);
    TRY("process_vm_readv", SYS_process_vm_readv, getpid(), &there, 1, &local, 1, 0);
    TRY("write", SYS_write, 1, at, 8);
    pipe(ends);
    write(ends[1], "abcdefgh", 8);
    TRY("vmsplice", SYS_vmsplice, ends[0], &there, 1, 0);
    TRY("getdents64", SYS_getdents64, folder, at, 4096);
    TRY("pipe", SYS_pipe, at);
    TRY("getcwd", SYS_getcwd, at, 4096);
    TRY("readlink", SYS_readlink, "/proc/self/cwd", at, 4096);
    TRY("mincore", SYS_mincore, (unsigned long)here & ~4095ul, 4096, at);
    close(zero), close(folder), close(ends[0]), close(ends[1]);
}

static void structures(char *at) {
    struct statx about;
    TRY("stat", SYS_stat, "/", at);
    TRY("lstat", SYS_lstat, "/", at);
    TRY("fstat", SYS_fstat, 0, at);
    TRY("newfstatat", SYS_newfstatat, AT_FDCWD, "/", at, 0);
    TRY("statx", SYS_statx, AT_FDCWD, "/", 0, STATX_MODE, at);
    TRY("statx-path", SYS_statx, AT_FDCWD, at, 0, STATX_MODE, &about);
    TRY("statfs", SYS_statfs, "/", at);
    TRY("uname", SYS_uname, at);
    TRY("sysinfo", SYS_sysinfo, at);
    TRY("times", SYS_times, at);
    TRY("getrusage", SYS_getrusage, 0, at);
    TRY("getrlimit", SYS_getrlimit, 0, at);
    TRY("prlimit64", SYS_prlimit64, 0, 0, 0, at);
    TRY("clock_gettime", SYS_clock_gettime, 0, at);
    TRY("gettimeofday", SYS_gettimeofday, at, 0);
    TRY("poll", SYS_poll, at, 1, 0);
    TRY("select", SYS_select, 1, at, 0, 0, 0);
    TRY("sched_getaffinity", SYS_sched_getaffinity, 0, 128, at);
    TRY("sigprocmask", SYS_rt_sigprocmask, SIG_BLOCK, 0, at, 8);
    TRY("sigaction", SYS_rt_sigaction, SIGUSR1, 0, at, 8);
    TRY("sigaltstack", SYS_sigaltstack, 0, at);
    TRY("futex", SYS_futex, at, 0, 1, 0, 0, 0);
    TRY("open", SYS_open, at, O_RDONLY);
    TRY("execve", SYS_execve, at, 0, 0);
    TRY("fcntl", SYS_fcntl, 0, F_GETLK, at);
    TRY("prctl", SYS_prctl, PR_GET_NAME, at);
    int set = epoll_create1(0), ends[2], pid = fork();
    if (!pid) _exit(0);
    pipe(ends);
    struct epoll_event event = {.events = EPOLLOUT};
    epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event);
    TRY("epoll_wait", SYS_epoll_wait, set, at, 1, 0);
    TRY("ioctl", SYS_ioctl, ends[0], FIONREAD, at);
    TRY("wait4", SYS_wait4, pid, at, 0, 0);
    close(set), close(ends[0]), close(ends[1]);
}

static void faults(char *at) {
    int file = syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */);
    struct uffdio_api api = {.api = UFFD_API};
    if (file < 0 || ioctl(file, UFFDIO_API, &api)) return;
    static char page[4096] __attribute__((aligned(4096)));
    unsigned long begin = (unsigned long)at & ~4095ul;
    struct uffdio_register range = {.range = {begin, 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    struct uffdio_copy copy = {.dst = begin, .src = (unsigned long)page, .len = 4096};
    struct uffdio_zeropage zero = {.range = {begin, 4096}};
    TRY("uffd-register", SYS_ioctl, file, UFFDIO_REGISTER, &range);
    TRY("uffd-copy", SYS_ioctl, file, UFFDIO_COPY, &copy);
    TRY("uffd-zero", SYS_ioctl, file, UFFDIO_ZEROPAGE, &zero);
    close(file);
}

int main(void) {
    /* In the executive's data, the shared memory, a thread's state. */
    static char *const places[] = {(char *)0x1f0000013000, (char *)0x1f1000000100, (char *)0x1f2000009000};
    int pair[2];
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    for (unsigned i = 0; i < 3; i++) {
        buffers(places[i]);
        structures(places[i]);
        messages(places[i], pair);
        faults(places[i]);
        puts("");
    }
    /* An argument that is not there: what was in its register is no address of the executive's. */
    unsigned cpu = 0, node = 0;
    TRY("getcpu", SYS_getcpu, &cpu, &node);
    puts("");
    return 0;
}
