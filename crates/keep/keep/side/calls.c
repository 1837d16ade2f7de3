/* The calls of libc that are logged: those that bring the outside in, and those that change it.
 *
 * Calls that change only the program's own memory (mmap, brk, mprotect) are not here: a rollback
 * undoes them and a replay makes them again. What libc calls inside itself (stdio) does not pass
 * here.
 */
#include "calls.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static uint64_t hash_iov(const struct iovec *iov, size_t count)
{
    uint64_t hash = 0;
    for (size_t i = 0; keep_log && i < count; i++)
        hash = keep_hash(hash, iov[i].iov_base, iov[i].iov_len);
    return hash;
}

static uint64_t hash_bytes(const void *at, size_t bytes)
{
    return keep_log ? keep_hash(0, at, bytes) : 0;
}

/* The most pieces of a vector that the kernel takes. */
#define MOST_PIECES 1024

/* Adds the places of a vector. */
static void add_outs(struct keep_out *out, int *count, const struct iovec *iov, size_t pieces)
{
    for (size_t i = 0; i < pieces; i++)
        out[(*count)++] = (struct keep_out){iov[i].iov_base, iov[i].iov_len};
}

/* The same call with room for that many places. */
static long answer_many(struct keep_call *call, const struct iovec *iov, size_t pieces)
{
    struct keep_out many[KEEP_OUTS + pieces];
    memcpy(many, call->out, sizeof call->out);
    add_outs(many, &call->outs, iov, pieces);
    call->many = many;
    return answer(call);
}

/* ---- bytes in */

EXPORT ssize_t read(int fd, void *to, size_t bytes)
{
    struct keep_call call = CALL(SYS_read, fd, ARGS(fd, to, bytes), .fill = FILL_RETURNED, .outs = 1,
        .out = {{to, bytes}});
    return answer(&call);
}

EXPORT ssize_t __read_chk(int fd, void *to, size_t bytes, size_t room)
{
    if (bytes > room)
        __builtin_trap();
    return read(fd, to, bytes);
}

EXPORT ssize_t pread64(int fd, void *to, size_t bytes, off64_t at)
{
    struct keep_call call = CALL(SYS_pread64, fd, ARGS(fd, to, bytes, at), .fill = FILL_RETURNED, .outs = 1,
        .out = {{to, bytes}});
    return answer(&call);
}

EXPORT ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    return pread64(fd, to, bytes, at);
}

EXPORT ssize_t __pread64_chk(int fd, void *to, size_t bytes, off64_t at, size_t room)
{
    if (bytes > room)
        __builtin_trap();
    return pread64(fd, to, bytes, at);
}

EXPORT ssize_t __pread_chk(int fd, void *to, size_t bytes, off_t at, size_t room)
{
    return __pread64_chk(fd, to, bytes, at, room);
}

static ssize_t read_pieces(struct keep_call call, const struct iovec *iov, int count)
{
    /* More than the kernel takes, or less than nothing: it fails. */
    size_t pieces = count < 0 || count > MOST_PIECES ? 0 : (size_t)count;
    if (pieces > KEEP_OUTS)
        return answer_many(&call, iov, pieces);
    add_outs(call.out, &call.outs, iov, pieces);
    return answer(&call);
}

EXPORT ssize_t readv(int fd, const struct iovec *iov, int count)
{
    return read_pieces(
        (struct keep_call)CALL(SYS_readv, fd, ARGS(fd, iov, count), .fill = FILL_RETURNED), iov, count);
}

EXPORT ssize_t preadv64(int fd, const struct iovec *iov, int count, off64_t at)
{
    return read_pieces(
        (struct keep_call)CALL(SYS_preadv, fd, ARGS(fd, iov, count, at), .fill = FILL_RETURNED), iov, count);
}

EXPORT ssize_t preadv(int fd, const struct iovec *iov, int count, off_t at)
{
    return preadv64(fd, iov, count, at);
}

EXPORT ssize_t recvfrom(int fd, void *restrict to, size_t bytes, int flags, struct sockaddr *restrict from,
    socklen_t *restrict length)
{
    struct keep_call call = CALL(SYS_recvfrom, fd, ARGS(fd, to, bytes, flags, from, length), .fill = FILL_RETURNED,
        .outs = 1, .out = {{to, bytes}});
    if (flags & MSG_PEEK) {
        call.log_nr += KEEP_PEEK;
        call.is_fresh = 1;
    }
    if (from && length) {
        call.fill = FILL_ALL;
        call.out[call.outs++] = (struct keep_out){length, sizeof *length};
        call.out[call.outs++] = (struct keep_out){from, *length};
    }
    return answer(&call);
}

EXPORT ssize_t recv(int fd, void *to, size_t bytes, int flags)
{
    return recvfrom(fd, to, bytes, flags, NULL, NULL);
}

EXPORT ssize_t __recv_chk(int fd, void *to, size_t bytes, size_t room, int flags)
{
    if (bytes > room)
        __builtin_trap();
    return recv(fd, to, bytes, flags);
}

EXPORT ssize_t __recvfrom_chk(int fd, void *restrict to, size_t bytes, size_t room, int flags,
    struct sockaddr *restrict from, socklen_t *restrict length)
{
    if (bytes > room)
        __builtin_trap();
    return recvfrom(fd, to, bytes, flags, from, length);
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    struct keep_call call = CALL(SYS_recvmsg, fd, ARGS(fd, message, flags), .fill = FILL_ALL);
    call.out[call.outs++] = (struct keep_out){message, sizeof *message};
    if (message->msg_name)
        call.out[call.outs++] = (struct keep_out){message->msg_name, message->msg_namelen};
    if (message->msg_control)
        call.out[call.outs++] = (struct keep_out){message->msg_control, message->msg_controllen};
    size_t pieces = message->msg_iovlen > MOST_PIECES ? 0 : message->msg_iovlen;
    if (pieces > (size_t)(KEEP_OUTS - call.outs))
        return answer_many(&call, message->msg_iov, pieces);
    add_outs(call.out, &call.outs, message->msg_iov, pieces);
    return answer(&call);
}

/* ---- bytes out */

EXPORT ssize_t write(int fd, const void *from, size_t bytes)
{
    struct keep_call call = CALL(SYS_write, fd, ARGS(fd, from, bytes), .hash = hash_bytes(from, bytes));
    return answer(&call);
}

EXPORT ssize_t pwrite64(int fd, const void *from, size_t bytes, off64_t at)
{
    struct keep_call call = CALL(SYS_pwrite64, fd, ARGS(fd, from, bytes, at), .hash = hash_bytes(from, bytes));
    return answer(&call);
}

EXPORT ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
    return pwrite64(fd, from, bytes, at);
}

EXPORT ssize_t writev(int fd, const struct iovec *iov, int count)
{
    struct keep_call call = CALL(SYS_writev, fd, ARGS(fd, iov, count),
        .hash = hash_iov(iov, count < 0 ? 0 : (size_t)count));
    return answer(&call);
}

EXPORT ssize_t pwritev64(int fd, const struct iovec *iov, int count, off64_t at)
{
    struct keep_call call = CALL(SYS_pwritev, fd, ARGS(fd, iov, count, at),
        .hash = hash_iov(iov, count < 0 ? 0 : (size_t)count));
    return answer(&call);
}

EXPORT ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t at)
{
    return pwritev64(fd, iov, count, at);
}

EXPORT ssize_t sendto(int fd, const void *from, size_t bytes, int flags, const struct sockaddr *to, socklen_t length)
{
    struct keep_call call = CALL(SYS_sendto, fd, ARGS(fd, from, bytes, flags, to, length),
        .hash = hash_bytes(from, bytes));
    return answer(&call);
}

EXPORT ssize_t send(int fd, const void *from, size_t bytes, int flags)
{
    return sendto(fd, from, bytes, flags, NULL, 0);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct keep_call call = CALL(SYS_sendmsg, fd, ARGS(fd, message, flags),
        .hash = hash_iov(message->msg_iov, message->msg_iovlen));
    return answer(&call);
}

EXPORT ssize_t sendfile64(int fd, int in, off64_t *at, size_t bytes)
{
    struct keep_call call = CALL(SYS_sendfile, fd, ARGS(fd, in, at, bytes));
    if (at) {
        call.fill = FILL_ALL;
        call.outs = 1;
        call.out[0] = (struct keep_out){at, sizeof *at};
    }
    return answer(&call);
}

EXPORT ssize_t sendfile(int fd, int in, off_t *at, size_t bytes)
{
    return sendfile64(fd, in, at, bytes);
}

/* ---- connections and descriptors */

static int named_socket(long nr, int fd, struct sockaddr *name, socklen_t *length, long flags)
{
    struct keep_call call = CALL(nr, fd, ARGS(fd, name, length, flags));
    if (name && length) {
        call.fill = FILL_ALL;
        call.outs = 2;
        call.out[0] = (struct keep_out){length, sizeof *length};
        call.out[1] = (struct keep_out){name, *length};
    }
    return (int)answer(&call);
}

EXPORT int accept(int fd, struct sockaddr *restrict name, socklen_t *restrict length)
{
    return named_socket(SYS_accept, fd, name, length, 0);
}

EXPORT int accept4(int fd, struct sockaddr *restrict name, socklen_t *restrict length, int flags)
{
    return named_socket(SYS_accept4, fd, name, length, flags);
}

EXPORT int getpeername(int fd, struct sockaddr *restrict name, socklen_t *restrict length)
{
    return named_socket(SYS_getpeername, fd, name, length, 0);
}

EXPORT int getsockname(int fd, struct sockaddr *restrict name, socklen_t *restrict length)
{
    return named_socket(SYS_getsockname, fd, name, length, 0);
}

/* A call without bytes that a thread makes once, also after a rollback. */
static int once(long nr, int fd)
{
    if (!keep_log || keep_serves || keep_forks)
        PLAIN(nr, fd, ARGS(fd));
    long ret = keep_call_once(nr, fd);
    if (ret < 0) {
        errno = (int)-ret;
        return -1;
    }
    return (int)ret;
}

EXPORT int close(int fd) { return once(SYS_close, fd); }

EXPORT int close_range(unsigned first, unsigned last, int flags)
{
    PLAIN(SYS_close_range, first ^ last << 16, ARGS(first, last, flags));
}

EXPORT void closefrom(int first)
{
    int saved = errno;
    if (close_range(first < 0 ? 0 : (unsigned)first, ~0u, 0) == -1)
        __builtin_trap();
    errno = saved;
}

EXPORT int socket(int domain, int type, int protocol) { PLAIN(SYS_socket, domain, ARGS(domain, type, protocol)); }
EXPORT int connect(int fd, const struct sockaddr *name, socklen_t length) {
    PLAIN(SYS_connect, fd, ARGS(fd, name, length));
}
EXPORT int bind(int fd, const struct sockaddr *name, socklen_t length) { PLAIN(SYS_bind, fd, ARGS(fd, name, length)); }
EXPORT int listen(int fd, int backlog) { PLAIN(SYS_listen, fd, ARGS(fd, backlog)); }
EXPORT int shutdown(int fd, int how) { PLAIN(SYS_shutdown, fd, ARGS(fd, how)); }
EXPORT int dup(int fd) { PLAIN(SYS_dup, fd, ARGS(fd)); }
EXPORT int dup2(int fd, int to) { PLAIN(SYS_dup2, fd, ARGS(fd, to)); }
EXPORT int dup3(int fd, int to, int flags) { PLAIN(SYS_dup3, fd, ARGS(fd, to, flags)); }
EXPORT int eventfd(unsigned count, int flags) { PLAIN(SYS_eventfd2, count, ARGS(count, flags)); }
EXPORT int epoll_create(int size) { PLAIN(SYS_epoll_create, 0, ARGS(size)); }
EXPORT int epoll_create1(int flags) { PLAIN(SYS_epoll_create1, 0, ARGS(flags)); }

EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    PLAIN(SYS_setsockopt, fd, ARGS(fd, level, name, value, length));
}

EXPORT int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict length)
{
    struct keep_call call = CALL(SYS_getsockopt, fd, ARGS(fd, level, name, value, length), .fill = FILL_ALL,
        .is_fresh = 1, .outs = 2,
                                 .out = {{length, sizeof *length}, {value, *length}});
    return (int)answer(&call);
}

EXPORT int pipe2(int fds[2], int flags)
{
    struct keep_call call = CALL(SYS_pipe2, 0, ARGS(fds, flags), .fill = FILL_ALL, .outs = 1,
        .out = {{fds, 2 * sizeof *fds}});
    return (int)answer(&call);
}

EXPORT int pipe(int fds[2])
{
    return pipe2(fds, 0);
}

EXPORT int socketpair(int domain, int type, int protocol, int fds[2])
{
    struct keep_call call = CALL(SYS_socketpair, domain, ARGS(domain, type, protocol, fds), .fill = FILL_ALL,
        .outs = 1, .out = {{fds, 2 * sizeof *fds}});
    return (int)answer(&call);
}

/* ---- waiting */

EXPORT int epoll_ctl(int fd, int operation, int of, struct epoll_event *event)
{
    /* The descriptor is in the number: a call on another one is another call. */
    PLAIN(SYS_epoll_ctl, fd ^ of << 8 ^ operation << 28, ARGS(fd, operation, of, event));
}

EXPORT int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    struct keep_call call = CALL(SYS_epoll_wait, fd, ARGS(fd, events, most, timeout), .fill = FILL_EVENTS,
        .timeout_arg = 4, .outs = 1,
                                 .out = {{events, most > 0 ? (size_t)most * sizeof *events : 0}});
    return (int)answer(&call);
}

EXPORT int epoll_pwait(int fd, struct epoll_event *events, int most, int timeout, const sigset_t *mask)
{
    struct keep_call call = CALL(SYS_epoll_pwait, fd, ARGS(fd, events, most, timeout, mask, 8), .fill = FILL_EVENTS,
        .timeout_arg = 4, .outs = 1,
                                 .out = {{events, most > 0 ? (size_t)most * sizeof *events : 0}});
    return (int)answer(&call);
}

EXPORT int poll(struct pollfd *fds, nfds_t count, int timeout)
{
    struct keep_call call = CALL(SYS_poll, count, ARGS(fds, count, timeout), .fill = FILL_ALL, .timeout_arg = 3,
        .outs = 1,
                                 .out = {{fds, count * sizeof *fds}});
    return (int)answer(&call);
}

EXPORT int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t room)
{
    if (room / sizeof *fds < count)
        __builtin_trap();
    return poll(fds, count, timeout);
}

/* The kernel leaves in `left` what is left of the time, so that a call that is made again waits
 * for the rest. */
EXPORT int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    struct timespec left = timeout ? *timeout : (struct timespec){0};
    struct keep_call call = CALL(SYS_ppoll, count, ARGS(fds, count, timeout ? &left : NULL, mask, 8),
        .fill = FILL_ALL, .outs = 1, .out = {{fds, count * sizeof *fds}});
    return (int)answer(&call);
}

EXPORT int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask,
                       size_t room)
{
    if (room / sizeof *fds < count)
        __builtin_trap();
    return ppoll(fds, count, timeout, mask);
}

EXPORT int pselect(int count, fd_set *restrict in, fd_set *restrict out, fd_set *restrict failed,
    const struct timespec *restrict timeout, const sigset_t *restrict mask)
{
    struct timespec left = timeout ? *timeout : (struct timespec){0};
    const struct {
        const sigset_t *mask;
        size_t bytes;
    } signals = {mask, 8};
    struct keep_call call = CALL(SYS_pselect6, count,
        ARGS(count, in, out, failed, timeout ? &left : NULL, &signals), .fill = FILL_ALL);
    fd_set *sets[] = {in, out, failed};
    for (int i = 0; i < 3; i++)
        if (sets[i])
            call.out[call.outs++] = (struct keep_out){sets[i], (size_t)((count + 63) / 64 * 8)};
    return (int)answer(&call);
}

EXPORT int select(int count, fd_set *restrict in, fd_set *restrict out, fd_set *restrict failed,
    struct timeval *restrict timeout)
{
    struct keep_call call = CALL(SYS_select, count, ARGS(count, in, out, failed, timeout), .fill = FILL_ALL);
    fd_set *sets[] = {in, out, failed};
    for (int i = 0; i < 3; i++)
        if (sets[i])
            call.out[call.outs++] = (struct keep_out){sets[i], (size_t)((count + 63) / 64 * 8)};
    if (timeout)
        call.out[call.outs++] = (struct keep_out){timeout, sizeof *timeout};
    return (int)answer(&call);
}

/* ---- files */

static int open_file(int at, const char *path, int flags, int mode)
{
    int fd = (int)answer(&(struct keep_call)CALL(SYS_openat, path_id(path), ARGS(at, path, flags, mode)));
    if (keep_log)
        keep_note_opened(fd, keep_serves);
    return fd;
}

#define MODE_OF(flags) \
    ({ \
        int mode = 0; \
        if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
            va_list list; \
            va_start(list, flags); \
            mode = va_arg(list, int); \
            va_end(list); \
        } \
        mode; \
    })

EXPORT int open(const char *path, int flags, ...) { return open_file(AT_FDCWD, path, flags, MODE_OF(flags)); }
EXPORT int open64(const char *path, int flags, ...) { return open_file(AT_FDCWD, path, flags, MODE_OF(flags)); }
EXPORT int openat(int at, const char *path, int flags, ...) { return open_file(at, path, flags, MODE_OF(flags)); }
EXPORT int openat64(int at, const char *path, int flags, ...) { return open_file(at, path, flags, MODE_OF(flags)); }

/* Of programs compiled with checks: without a mode. */
EXPORT int __open_2(const char *path, int flags) { return open_file(AT_FDCWD, path, flags, 0); }
EXPORT int __open64_2(const char *path, int flags) { return open_file(AT_FDCWD, path, flags, 0); }
EXPORT int __openat_2(int at, const char *path, int flags) { return open_file(at, path, flags, 0); }
EXPORT int __openat64_2(int at, const char *path, int flags) { return open_file(at, path, flags, 0); }

static int state_of(long nr, int of, int at, const char *path, struct stat *to, int flags)
{
    struct keep_call call = CALL(nr, of, ARGS(at, path, to, flags), .fill = FILL_ALL, .is_fresh = 1, .outs = 1,
        .out = {{to, sizeof *to}});
    if (nr == SYS_fstat)
        memcpy(call.arg, (long[6])ARGS(at, to), sizeof call.arg);
    return (int)answer(&call);
}

EXPORT int fstat(int fd, struct stat *to) { return state_of(SYS_fstat, fd, fd, NULL, to, 0); }
EXPORT int fstat64(int fd, struct stat64 *to) { return state_of(SYS_fstat, fd, fd, NULL, (struct stat *)to, 0); }
EXPORT int stat(const char *restrict path, struct stat *restrict to) {
    return state_of(SYS_newfstatat, path_id(path), AT_FDCWD, path, to, 0);
}
EXPORT int stat64(const char *restrict path, struct stat64 *restrict to) { return stat(path, (struct stat *)to); }
EXPORT int lstat(const char *restrict path, struct stat *restrict to) {
    return state_of(SYS_newfstatat, path_id(path), AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW);
}
EXPORT int lstat64(const char *restrict path, struct stat64 *restrict to) { return lstat(path, (struct stat *)to); }
EXPORT int fstatat(int at, const char *restrict path, struct stat *restrict to, int flags) {
    return state_of(SYS_newfstatat, path_id(path), at, path, to, flags);
}
EXPORT int fstatat64(int at, const char *restrict path, struct stat64 *restrict to, int flags) {
    return fstatat(at, path, (struct stat *)to, flags);
}

EXPORT off64_t lseek64(int fd, off64_t to, int whence) { PLAIN(SYS_lseek, fd, ARGS(fd, to, whence)); }
EXPORT off_t lseek(int fd, off_t to, int whence) { return lseek64(fd, to, whence); }
EXPORT int ftruncate64(int fd, off64_t length) { PLAIN(SYS_ftruncate, fd, ARGS(fd, length)); }
EXPORT int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }
EXPORT int fsync(int fd) { return once(SYS_fsync, fd); }
EXPORT int fdatasync(int fd) { return once(SYS_fdatasync, fd); }
EXPORT int flock(int fd, int operation) { PLAIN(SYS_flock, fd, ARGS(fd, operation)); }
EXPORT int access(const char *path, int mode) { PLAIN(SYS_access, path_id(path), ARGS(path, mode)); }
EXPORT int unlink(const char *path) { PLAIN(SYS_unlink, path_id(path), ARGS(path)); }
EXPORT int rename(const char *from, const char *to) { PLAIN(SYS_rename, path_id(from), ARGS(from, to)); }
EXPORT int mkdir(const char *path, mode_t mode) { PLAIN(SYS_mkdir, path_id(path), ARGS(path, mode)); }
EXPORT int rmdir(const char *path) { PLAIN(SYS_rmdir, path_id(path), ARGS(path)); }
