/* Logged calls that ask the kernel, or change what belongs to the process alone: commands of
 * descriptors, states of files, timers, random numbers. A replay that asked again would learn what
 * is so now, and one that changed again would change twice.
 */
#include "calls.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <net/if.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* ---- commands of descriptors */

/* Bytes that fcntl leaves at its argument. */
static size_t left_by_fcntl(int command)
{
    switch (command) {
    case F_GETLK:
    case F_OFD_GETLK: return sizeof(struct flock);
    case F_GETOWN_EX: return sizeof(struct f_owner_ex);
    case F_GET_RW_HINT:
    case F_GET_FILE_RW_HINT: return sizeof(uint64_t);
    }
    return 0;
}

EXPORT int fcntl64(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    struct keep_call call = CALL(SYS_fcntl, fd, ARGS(fd, command, argument));
    return (int)answer_with(&call, argument, left_by_fcntl(command));
}

EXPORT int fcntl(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return fcntl64(fd, command, argument);
}

/* The kernel's `struct termios`. */
#define TERMINAL_BYTES 36

/* Bytes that ioctl leaves at its argument; -1: not known. */
static long left_by_ioctl(unsigned long request)
{
    if (_IOC_DIR(request) & _IOC_READ)
        return _IOC_SIZE(request);
    if (_IOC_DIR(request) == _IOC_WRITE)
        return 0;
    switch (request) {
    case FIONBIO:
    case FIOASYNC:
    case FIOCLEX:
    case FIONCLEX:
    case FIOSETOWN:
    case SIOCSPGRP:
    case TCSETS:
    case TCSETSW:
    case TCSETSF:
    case TCSBRK:
    case TCXONC:
    case TCFLSH:
    case TIOCSWINSZ:
    case TIOCSPGRP:
    case TIOCSCTTY:
    case TIOCNOTTY: return 0;
    case FIONREAD:
    case FIOGETOWN:
    case SIOCGPGRP:
    case SIOCATMARK:
    case TIOCOUTQ: /* and SIOCOUTQ */
    case TIOCGPGRP:
    case TIOCGSID:
    case TIOCMGET: return sizeof(int);
    case TCGETS: return TERMINAL_BYTES;
    case TIOCGWINSZ: return sizeof(struct winsize);
    case SIOCGIFNAME:
    case SIOCGIFINDEX:
    case SIOCGIFFLAGS:
    case SIOCGIFADDR:
    case SIOCGIFDSTADDR:
    case SIOCGIFBRDADDR:
    case SIOCGIFNETMASK:
    case SIOCGIFMETRIC:
    case SIOCGIFMTU:
    case SIOCGIFHWADDR:
    case SIOCGIFTXQLEN: return sizeof(struct ifreq);
    }
    return -1;
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    long left = left_by_ioctl((unsigned)request);
    struct keep_call call = CALL(SYS_ioctl, fd, ARGS(fd, request, argument), .is_opaque = left < 0);
    return (int)answer_with(&call, argument, left < 0 ? 0 : (size_t)left);
}

/* ---- files, and the process */

EXPORT int statx(int at, const char *restrict path, int flags, unsigned mask, struct statx *restrict to)
{
    struct keep_call call = CALL(SYS_statx, path_id(path), ARGS(at, path, flags, mask, to), .is_fresh = 1);
    return (int)answer_with(&call, to, sizeof *to);
}

EXPORT int statfs(const char *path, struct statfs *to)
{
    struct keep_call call = CALL(SYS_statfs, path_id(path), ARGS(path, to), .is_fresh = 1);
    return (int)answer_with(&call, to, sizeof *to);
}

EXPORT int fstatfs(int fd, struct statfs *to)
{
    struct keep_call call = CALL(SYS_fstatfs, fd, ARGS(fd, to), .is_fresh = 1);
    return (int)answer_with(&call, to, sizeof *to);
}

EXPORT int statfs64(const char *path, struct statfs64 *to) { return statfs(path, (struct statfs *)to); }
EXPORT int fstatfs64(int fd, struct statfs64 *to) { return fstatfs(fd, (struct statfs *)to); }

EXPORT ssize_t readlinkat(int at, const char *restrict path, char *restrict to, size_t bytes)
{
    struct keep_call call = CALL(SYS_readlinkat, path_id(path), ARGS(at, path, to, bytes), .fill = FILL_RETURNED,
        .is_fresh = 1, .outs = 1, .out = {{to, bytes}});
    return answer(&call);
}

EXPORT ssize_t readlink(const char *restrict path, char *restrict to, size_t bytes)
{
    return readlinkat(AT_FDCWD, path, to, bytes);
}

EXPORT int chdir(const char *path) { PLAIN(SYS_chdir, path_id(path), ARGS(path)); }
EXPORT int fchdir(int fd) { PLAIN(SYS_fchdir, fd, ARGS(fd)); }
EXPORT mode_t umask(mode_t mask) { PLAIN(SYS_umask, mask, ARGS(mask)); }
EXPORT int fchmod(int fd, mode_t mode) { PLAIN(SYS_fchmod, fd, ARGS(fd, mode)); }
EXPORT int fchown(int fd, uid_t user, gid_t group) { PLAIN(SYS_fchown, fd, ARGS(fd, user, group)); }

EXPORT int sysinfo(struct sysinfo *to)
{
    struct keep_call call = CALL(SYS_sysinfo, 0, ARGS(to), .is_fresh = 1);
    return (int)answer_with(&call, to, sizeof *to);
}

EXPORT clock_t times(struct tms *to)
{
    struct keep_call call = CALL(SYS_times, 0, ARGS(to), .is_fresh = 1);
    return answer_with(&call, to, sizeof *to);
}

EXPORT clock_t clock(void)
{
    struct timespec used;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) != 0)
        return -1;
    return used.tv_sec * CLOCKS_PER_SEC + used.tv_nsec / (1000000000 / CLOCKS_PER_SEC);
}

/* ---- timers */

EXPORT int setitimer(__itimer_which_t which, const struct itimerval *restrict to, struct itimerval *restrict before)
{
    struct keep_call call = CALL(SYS_setitimer, which, ARGS(which, to, before));
    return (int)answer_with(&call, before, sizeof *before);
}

EXPORT int getitimer(__itimer_which_t which, struct itimerval *to)
{
    struct keep_call call = CALL(SYS_getitimer, which, ARGS(which, to), .is_fresh = 1);
    return (int)answer_with(&call, to, sizeof *to);
}

EXPORT unsigned alarm(unsigned seconds) { PLAIN(SYS_alarm, seconds, ARGS(seconds)); }

EXPORT int timerfd_create(clockid_t clock, int flags) { PLAIN(SYS_timerfd_create, clock, ARGS(clock, flags)); }

EXPORT int timerfd_settime(int fd, int flags, const struct itimerspec *to, struct itimerspec *before)
{
    struct keep_call call = CALL(SYS_timerfd_settime, fd, ARGS(fd, flags, to, before));
    return (int)answer_with(&call, before, sizeof *before);
}

EXPORT int timerfd_gettime(int fd, struct itimerspec *to)
{
    struct keep_call call = CALL(SYS_timerfd_gettime, fd, ARGS(fd, to), .is_fresh = 1);
    return (int)answer_with(&call, to, sizeof *to);
}

/* libc has a name of its own for such a timer. */
#define NAME_OF(timer) ((int)(long)(timer))
#define OF_LIBC(name) \
    ({ \
        static __typeof__(name) *found; \
        if (!found) \
            found = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); \
        found; \
    })
/* The answer from the log, or what libc's own function does now. */
#define BY_LIBC(call, made) \
    ({ \
        long ret; \
        if (!keep_begin(&(call), &ret)) { \
            ret = (made); \
            ret = ret == -1 ? -errno : ret; \
            keep_end(&(call), ret); \
        } \
        errno = ret < 0 ? (int)-ret : errno; \
        ret < 0 ? -1 : (int)ret; \
    })

/* One that runs a function has a thread of libc's own, which goes back. */
EXPORT int timer_create(clockid_t clock, struct sigevent *restrict event, timer_t *restrict timer)
{
    struct keep_call call = {.log_nr = SYS_timer_create, .fd = clock, .fill = FILL_ALL, .outs = 1,
        .is_opaque = event && event->sigev_notify == SIGEV_THREAD, .out = {{timer, sizeof *timer}}};
    return BY_LIBC(call, OF_LIBC(timer_create)(clock, event, timer));
}

EXPORT int timer_settime(timer_t timer, int flags, const struct itimerspec *restrict to,
    struct itimerspec *restrict before)
{
    struct keep_call call = {.log_nr = SYS_timer_settime, .fd = NAME_OF(timer), .fill = FILL_ALL,
        .outs = before ? 1 : 0, .out = {{before, sizeof *before}}};
    return BY_LIBC(call, OF_LIBC(timer_settime)(timer, flags, to, before));
}

EXPORT int timer_gettime(timer_t timer, struct itimerspec *to)
{
    struct keep_call call = {.log_nr = SYS_timer_gettime, .fd = NAME_OF(timer), .fill = FILL_ALL, .is_fresh = 1,
        .outs = 1, .out = {{to, sizeof *to}}};
    return BY_LIBC(call, OF_LIBC(timer_gettime)(timer, to));
}

EXPORT int timer_getoverrun(timer_t timer)
{
    struct keep_call call = {.log_nr = SYS_timer_getoverrun, .fd = NAME_OF(timer), .is_fresh = 1};
    return BY_LIBC(call, OF_LIBC(timer_getoverrun)(timer));
}

EXPORT int timer_delete(timer_t timer)
{
    struct keep_call call = {.log_nr = SYS_timer_delete, .fd = NAME_OF(timer)};
    return BY_LIBC(call, OF_LIBC(timer_delete)(timer));
}

/* ---- random numbers */

EXPORT ssize_t getrandom(void *to, size_t bytes, unsigned flags)
{
    struct keep_call call = CALL(SYS_getrandom, 0, ARGS(to, bytes, flags), .fill = FILL_RETURNED, .outs = 1,
        .out = {{to, bytes}});
    return answer(&call);
}

/* libc has these without a call that would be seen. */
EXPORT int getentropy(void *to, size_t bytes)
{
    if (bytes > 256) {
        errno = EIO;
        return -1;
    }
    unsigned char *at = to;
    for (size_t done = 0; done < bytes;) {
        ssize_t got = getrandom(at + done, bytes - done, 0);
        if (got < 0 && errno != EINTR)
            return -1;
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

EXPORT void arc4random_buf(void *to, size_t bytes)
{
    unsigned char *at = to;
    for (size_t some; bytes; at += some, bytes -= some) {
        some = bytes < 256 ? bytes : 256;
        if (getentropy(at, some) == -1)
            __builtin_trap();
    }
}

EXPORT uint32_t arc4random(void)
{
    uint32_t number;
    arc4random_buf(&number, sizeof number);
    return number;
}

/* Evenly below the bound: numbers of the last, incomplete part are drawn again. */
EXPORT uint32_t arc4random_uniform(uint32_t bound)
{
    if (bound < 2)
        return 0;
    uint32_t number, rest = -bound % bound;
    do
        number = arc4random();
    while (number < rest);
    return number % bound;
}
