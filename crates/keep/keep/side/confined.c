/* A replay touches nothing outside: the kernel hands each system call that the serving thread makes
 * from elsewhere than this library to it (Syscall User Dispatch, which the keeper sets when it puts
 * the program back): what libc does inside itself (stdio, name services), raw instructions.
 *
 * What changes nothing outside is made. Output that comes before a call of the log was made in the
 * run that is replayed, for the program is at the same place: it is answered as made. Behind the
 * last call of the log nobody knows whether it was: there, and for any other call, the replay has
 * left its log. Lines on stderr are taken to be a dying program's, until it is seen not to die.
 *
 * How far the replay had come when it did something outside is noted: an input that was read
 * before is not dropped.
 *
 * `keep_both->confined` is the kernel's selector. The library's own calls pass by their address,
 * from keep_text to keep_text_end.
 */
#include "own.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#define DISPATCHED 2 /* si_code SYS_USER_DISPATCH */
#define SET_DISPATCH 59

/* Where calls that a thread makes itself (keep_itself) continue, a place each. */
#define PLACES 16
uint64_t keep_back[PLACES] HIDDEN;

/* Lines on stderr behind the last call of the log, which are taken to have been written. The
 * program's memory: a rollback forgets it. */
static int presumed;

/* Descriptors that this replay itself has opened. The program's memory: a rollback forgets them. */
#define OPENED 16
static struct {
    int fd, has_offset; /* 1: the next output would not go where it went before */
} opened[OPENED];
static int opened_count;

static int place_of(int fd)
{
    for (int i = 0; i < opened_count; i++)
        if (opened[i].fd == fd)
            return i;
    return -1;
}

static int is_opened(int fd)
{
    return place_of(fd) != -1;
}

static void note_opened(long fd, long flags)
{
    if (fd >= 0 && opened_count < OPENED) {
        opened[opened_count].fd = (int)fd;
        opened[opened_count++].has_offset = (flags & O_ACCMODE) != O_RDONLY && !(flags & O_APPEND);
    }
}

int keep_is_unsure(void)
{
    if (presumed)
        return 1;
    for (int i = 0; i < opened_count; i++)
        if (opened[i].has_offset)
            return 1;
    return 0;
}

int keep_is_dispatched(int sig, const siginfo_t *info)
{
    return sig == SIGSYS && info->si_code == DISPATCHED && keep_both;
}

void keep_confine(void)
{
    if (keep_both->is_confined)
        keep_both->confined = 1;
}

void keep_unconfine(void)
{
    if (!keep_both->is_confined)
        return;
    keep_both->confined = 0;
    keep_both->is_confined = 0;
    keep_plain(SYS_prctl, SET_DISPATCH, 0, 0, 0, 0, 0);
}

static int is_since(int64_t seconds, uint64_t ns)
{
    return (uint64_t)seconds * 1000000000 + ns >= keep_orders->since;
}

/* Whether the file has changed since the checkpoint: a replay would read other bytes. What the
 * kernel tells of itself is no file. */
static int has_changed(int fd)
{
    enum { PROC = 0x9fa0, SYS = 0x62656572 };
    struct stat st;
    struct statfs of;
    if (keep_plain(SYS_fstat, fd, (long)&st, 0, 0, 0, 0) < 0 || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return 0;
    return is_since(st.st_ctim.tv_sec, (uint64_t)st.st_ctim.tv_nsec) &&
           (keep_plain(SYS_fstatfs, fd, (long)&of, 0, 0, 0, 0) < 0 || (of.f_type != PROC && of.f_type != SYS));
}

/* Whether a call that was made now has answered what it may not have answered then. */
static int answers_anew(long nr, const long *arg, long ret)
{
    const struct stat *st = NULL;
    if (ret < 0)
        return 0;
    switch (nr) {
    case SYS_open:
    case SYS_openat: return has_changed((int)ret);
    case SYS_stat:
    case SYS_lstat: st = (const struct stat *)arg[1]; break;
    case SYS_newfstatat:
        /* Without a name it is of a descriptor: stdio asks so how large its buffers are to be. */
        if (*(const char *)arg[1])
            st = (const struct stat *)arg[2];
        break;
    case SYS_statx: {
        const struct statx *stx = (const struct statx *)arg[4];
        return *(const char *)arg[1] && is_since(stx->stx_ctime.tv_sec, stx->stx_ctime.tv_nsec);
    }
    }
    return st && is_since(st->st_ctim.tv_sec, (uint64_t)st->st_ctim.tv_nsec);
}

/* Whether the thread sends itself a signal that it blocks: what waits is not rolled back. */
static int sends_blocked(long nr, const long *arg, uint64_t mask)
{
    long to = nr == SYS_tkill ? arg[0] : arg[1], sig = nr == SYS_tkill ? arg[1] : arg[2];
    return (nr == SYS_tgkill || nr == SYS_rt_tgsigqueueinfo || nr == SYS_tkill) && sig >= 1 && sig <= 64 &&
           mask >> (sig - 1) & 1 && to == keep_plain(SYS_gettid, 0, 0, 0, 0, 0, 0);
}

/* What is to be done with a call. */
enum verdict {
    OUTSIDE, /* it is in no log */
    INSIDE,  /* made from here */
    ITSELF,  /* made by the thread itself: it changes what a handler cannot */
};

static int opens_for_reading(long flags)
{
    return (flags & O_ACCMODE) == O_RDONLY && !(flags & (O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY)));
}

static enum verdict judge(long nr, const long *arg)
{
    int own = keep_own_pid;
    switch (nr) {
    case SYS_rt_sigreturn:
    case SYS_rt_sigsuspend:
    case SYS_sigaltstack:
    case SYS_exit: /* of the thread */
        return ITSELF;
    case SYS_clone:
        return arg[0] & CLONE_THREAD ? ITSELF : OUTSIDE;
    case SYS_clone3:
        return *(const uint64_t *)arg[0] & CLONE_THREAD ? ITSELF : OUTSIDE;
    case SYS_tgkill:
    case SYS_rt_tgsigqueueinfo:
        return arg[0] == own ? ITSELF : OUTSIDE;
    case SYS_open:
        return opens_for_reading(arg[1]) ? INSIDE : OUTSIDE;
    case SYS_openat:
        return opens_for_reading(arg[2]) ? INSIDE : OUTSIDE;
    case SYS_read:
    case SYS_readv:
    case SYS_pread64:
    case SYS_preadv:
    case SYS_lseek:
    case SYS_getdents64:
    case SYS_close:
        return is_opened((int)arg[0]) ? INSIDE : OUTSIDE;
    case SYS_fcntl:
        return arg[1] != F_DUPFD && (unsigned long)arg[1] <= F_GETLK ? INSIDE : OUTSIDE;
    case SYS_ioctl:
        return arg[1] == TCGETS || arg[1] == FIONREAD || arg[1] == TIOCGWINSZ ? INSIDE : OUTSIDE;
    }
    return (unsigned long)nr < 512 && keep_orders->inside[nr / 64] >> nr % 64 & 1 ? INSIDE : OUTSIDE;
}

/* Whether output to it is either made whole or fails for good. */
static int takes_all(int fd)
{
    struct stat st;
    if (keep_plain(SYS_fstat, fd, (long)&st, 0, 0, 0, 0) < 0)
        return 0;
    return S_ISREG(st.st_mode) || !(keep_plain(SYS_fcntl, fd, F_GETFL, 0, 0, 0, 0) & O_NONBLOCK);
}

static long bytes_of(const struct iovec *iov, long count)
{
    long bytes = 0;
    for (long i = 0; i < count; i++)
        bytes += (long)iov[i].iov_len;
    return bytes;
}

/* Output that was made in the run that is replayed, and what it has answered. */
static int was_made(long nr, const long *arg, long *ret)
{
    int fd = (int)arg[0];
    switch (nr) {
    case SYS_write:
    case SYS_pwrite64:
    case SYS_sendto:
        *ret = arg[2];
        return takes_all(fd);
    case SYS_writev:
        *ret = bytes_of((const struct iovec *)arg[1], arg[2]);
        return takes_all(fd);
    case SYS_openat:
        if (opened_count == OPENED)
            return 0;
        *ret = keep_plain(nr, arg[0], arg[1], arg[2] & ~(O_CREAT | O_EXCL | O_TRUNC), 0, 0, 0);
        note_opened(*ret, arg[2]);
        return *ret >= 0;
    case SYS_close:
        *ret = 0;
        return 1;
    }
    return 0;
}

/* Lines of a program that is about to die, as libc writes them for assert and abort. If it dies
 * this time too they were written; if not, the replay is not proven. */
static int is_last_word(long nr, const long *arg, long *ret)
{
    if (arg[0] != STDERR_FILENO || (nr != SYS_write && nr != SYS_writev))
        return 0;
    *ret = nr == SYS_write ? arg[2] : bytes_of((const struct iovec *)arg[1], arg[2]);
    presumed = 1;
    return 1;
}

/* Has the thread make the call, with its registers, from the library's own text, where no call is
 * handed over: from the next one on they are again. 0: there is no place for it. */
static int make_itself(long nr, greg_t *regs)
{
    if (nr == SYS_rt_sigreturn) {
        regs[REG_RIP] = (greg_t)keep_handler_end;
        return 1;
    }
    uint64_t back = (uint64_t)regs[REG_RIP];
    for (int i = 0; i < PLACES; i++) {
        uint64_t none = 0;
        if (__atomic_load_n(&keep_back[i], __ATOMIC_SEQ_CST) == back ||
            __atomic_compare_exchange_n(&keep_back[i], &none, back, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            regs[REG_RIP] = (greg_t)(keep_itself + 8 * i);
            return 1;
        }
    }
    return 0;
}

/* Has the signal come where the call was made, not in this handler. */
static long send_to_itself(long nr, const long *arg)
{
    const uint64_t all = ~0ull;
    keep_plain(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, 8, 0, 0);
    return keep_plain(nr, arg[0], arg[1], arg[2], arg[3], 0, 0);
}

/* The mask of the place where the call was made; the kernel would put back this handler's. */
static long set_mask(long how, const uint64_t *set, uint64_t *before, uint64_t *mask)
{
    uint64_t was = *mask;
    if (set)
        switch (how) {
        case SIG_BLOCK: *mask |= *set; break;
        case SIG_UNBLOCK: *mask &= ~*set; break;
        case SIG_SETMASK: *mask = *set; break;
        default: return -22; /* EINVAL */
        }
    *mask &= ~KEEP_OPEN_SIGNALS;
    if (before)
        *before = was;
    return 0;
}

/* From the input on that the replay has come past, something was done outside. */
static void note_outside(void)
{
    if (keep_news->outside_at < keep_both->cursor)
        keep_news->outside_at = keep_both->cursor;
}

void keep_dispatch(void *context)
{
    ucontext_t *at = context;
    greg_t *regs = at->uc_mcontext.gregs;
    long nr = (int)regs[REG_RAX];
    long arg[6] = {regs[REG_RDI], regs[REG_RSI], regs[REG_RDX], regs[REG_R10], regs[REG_R8], regs[REG_R9]};
    if (nr == SYS_rt_sigprocmask) {
        regs[REG_RAX] = set_mask(arg[0], (const uint64_t *)arg[1], (uint64_t *)arg[2], (uint64_t *)&at->uc_sigmask);
        return;
    }
    switch (judge(nr, arg)) {
    case ITSELF:
        if (sends_blocked(nr, arg, *(const uint64_t *)&at->uc_sigmask))
            break;
        if (nr == SYS_tgkill || nr == SYS_rt_tgsigqueueinfo)
            regs[REG_RAX] = send_to_itself(nr, arg);
        else if (!make_itself(nr, regs))
            break;
        return;
    case INSIDE: {
        long ret = keep_plain(nr, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
        if (answers_anew(nr, arg, ret))
            break;
        if (nr == SYS_open || nr == SYS_openat)
            note_opened(ret, O_RDONLY);
        if (nr == SYS_close)
            opened[place_of((int)arg[0])] = opened[--opened_count];
        regs[REG_RAX] = ret;
        return;
    }
    case OUTSIDE: {
        long ret;
        int is_within = keep_both->cursor < keep_both->head;
        if (is_within ? was_made(nr, arg, &ret) : is_last_word(nr, arg, &ret)) {
            if (is_within && arg[0] != STDERR_FILENO)
                note_outside();
            regs[REG_RAX] = ret;
            return;
        }
        note_outside();
    }
    }
    keep_news->asked_nr = (uint32_t)nr;
    keep_news->asked_fd = (int)arg[0];
    keep_news->logged_nr = KEEP_UNLOGGED;
    keep_news->logged_fd = 0;
    keep_news->diverged++;
    keep_report_replay(KEEP_LEFT);
    keep_die();
}
