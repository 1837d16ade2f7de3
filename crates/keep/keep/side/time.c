/* Logged calls that are more than a system call: clocks (answered without the kernel), sleeps,
 * children. */
#include "own.h"
#include <dlfcn.h>
#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static __attribute__((noinline)) int logged_clock(clockid_t clock, struct timespec *to)
{
    struct keep_call call = {
        .log_nr = SYS_clock_gettime, .fd = clock, .fill = FILL_ALL, .is_fresh = 1, .outs = 1,
            .out = {{to, sizeof *to}}};
    long ret;
    if (keep_begin(&call, &ret))
        return (int)ret;
    ret = keep_clock_gettime(clock, to);
    keep_end(&call, ret);
    return (int)ret;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *to)
{
    if (!keep_serves || keep_in_heap)
        return keep_clock_gettime(clock, to);
    return keep_record_clock(clock, to) ? 0 : logged_clock(clock, to);
}

EXPORT int gettimeofday(struct timeval *restrict to, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    int ret = clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return ret;
}

EXPORT time_t time(time_t *to)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (to)
        *to = now.tv_sec;
    return now.tv_sec;
}

static int answer(struct keep_call *call)
{
    long ret = keep_logged(call);
    if (ret < 0 && ret > -4096) {
        errno = (int)-ret;
        return -1;
    }
    return (int)ret;
}

/* A sleep is logged too: a replay must not sleep again. */
EXPORT int nanosleep(const struct timespec *length, struct timespec *left)
{
    return answer(&(struct keep_call){.nr = SYS_nanosleep, .log_nr = SYS_nanosleep,
        .arg = {(long)length, (long)left}, .fill = FILL_CUT, .is_fresh = 1, .outs = left ? 1 : 0,
        .out = {{left, sizeof *left}}});
}

EXPORT int usleep(useconds_t us)
{
    struct timespec length = {us / 1000000, us % 1000000 * 1000};
    return nanosleep(&length, NULL);
}

EXPORT unsigned sleep(unsigned seconds)
{
    struct timespec length = {seconds, 0}, left = {0};
    return nanosleep(&length, &left) == 0 ? 0 : (unsigned)left.tv_sec + (left.tv_nsec > 0);
}

EXPORT int getrusage(__rusage_who_t whose, struct rusage *to)
{
    return answer(&(struct keep_call){
        .nr = SYS_getrusage, .log_nr = SYS_getrusage, .fd = whose, .arg = {whose, (long)to}, .fill = FILL_ALL,
            .is_fresh = 1, .outs = 1, .out = {{to, sizeof *to}}});
}

EXPORT int kill(pid_t pid, int sig)
{
    return answer(&(struct keep_call){.nr = SYS_kill, .log_nr = SYS_kill, .fd = pid, .arg = {pid, sig}});
}

/* A child is made once; a replay gets its number from the log. */
EXPORT pid_t fork(void)
{
    static pid_t (*make)(void);
    struct keep_call call = {.log_nr = SYS_fork};
    long ret;
    if (!make)
        make = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
    if (keep_begin(&call, &ret))
        goto answered;
    ret = make();
    if (ret == 0)
        return 0;
    if (ret == -1)
        ret = -errno;
    keep_end(&call, ret);
answered:
    if (ret < 0) {
        errno = (int)-ret;
        return -1;
    }
    return (pid_t)ret;
}

/* The child of a vfork would log its calls as its parent's. */
EXPORT pid_t vfork(void)
{
    return fork();
}

EXPORT pid_t wait4(pid_t pid, int *status, int options, struct rusage *usage)
{
    struct keep_call call = {.nr = SYS_wait4, .log_nr = SYS_wait4, .fd = pid,
        .arg = {pid, (long)status, options, (long)usage}, .fill = FILL_ALL};
    if (status)
        call.out[call.outs++] = (struct keep_out){status, sizeof *status};
    if (usage)
        call.out[call.outs++] = (struct keep_out){usage, sizeof *usage};
    return answer(&call);
}

EXPORT pid_t wait3(int *status, int options, struct rusage *usage)
{
    return wait4(-1, status, options, usage);
}

EXPORT pid_t waitpid(pid_t pid, int *status, int options)
{
    return wait4(pid, status, options, NULL);
}

EXPORT pid_t wait(int *status)
{
    return wait4(-1, status, 0, NULL);
}
