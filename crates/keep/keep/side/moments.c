/* Request mode: the calls that are the moments of a request, by the rules in keep_orders.
 *
 *   begins  the process waits for the next request. Its memory is then as at its one
 *           checkpoint, and the log of the request begins there.
 *   ends    the request is over. A crash after that needs no replay: the process waits for the
 *           next request again.
 *
 * Locks that processes share are counted. While a process holds others than where it waits, a
 * request has not ended: going back without a replay would keep them, or release them twice. The
 * replay does neither, since they are in the log.
 */
#include "own.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/sem.h>
#include <sys/syscall.h>

#define ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

/* How long a process waits for its first checkpoint where its first request begins, in steps. */
#define FIRST_STEPS 40
#define FIRST_STEP_NS 25000000

#define DESCRIPTORS 65536

/* Descriptors of connections that were accepted, a bit each. */
static unsigned char accepted[DESCRIPTORS / 8];

/* The program's memory, so that a rollback undoes them. */
static int has_begun;       /* a request was waited for before */
static int is_under_way;    /* a request has begun and not ended */
static int locks;           /* taken and not released */
static int locks_at_begin;  /* of these, where the first request was waited for */

static int is_accepted(int fd)
{
    return (unsigned)fd < DESCRIPTORS && accepted[fd / 8] >> fd % 8 & 1;
}

static void set_accepted(long fd, int is)
{
    if ((unsigned long)fd >= DESCRIPTORS)
        return;
    unsigned char bit = (unsigned char)(1 << fd % 8);
    accepted[fd / 8] = (unsigned char)(is ? accepted[fd / 8] | bit : accepted[fd / 8] & ~bit);
}

/* How many locks between processes the call takes; negative: releases. */
static int taken_by(const struct keep_call *call)
{
    int taken = 0;
    if (call->nr == SYS_flock)
        return call->arg[1] & LOCK_UN ? -1 : 1;
    long command = call->arg[1];
    if (call->nr == SYS_fcntl &&
        (command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW))
        return ((const struct flock *)call->arg[2])->l_type == F_UNLCK ? -1 : 1;
    if (call->nr == SYS_semop || call->nr == SYS_semtimedop) {
        const struct sembuf *operations = (const void *)call->arg[1];
        for (long i = 0; i < call->arg[2]; i++)
            taken -= operations[i].sem_op;
    }
    return taken;
}

static uint32_t bit_of(const struct keep_call *call)
{
    if (call->log_nr != (uint64_t)call->nr)
        return 0;
    switch (call->nr) {
    case SYS_accept:
    case SYS_accept4: return KEEP_AT_ACCEPT;
    case SYS_poll:
    case SYS_ppoll: return KEEP_AT_POLL;
    case SYS_select:
    case SYS_pselect6: return KEEP_AT_SELECT;
    case SYS_epoll_wait:
    case SYS_epoll_pwait: return KEEP_AT_EPOLL;
    case SYS_read: return KEEP_AT_READ;
    case SYS_readv: return KEEP_AT_READV;
    case SYS_recvfrom: return KEEP_AT_RECV;
    case SYS_recvmsg: return KEEP_AT_RECVMSG;
    case SYS_write: return KEEP_AT_WRITE;
    case SYS_writev: return KEEP_AT_WRITEV;
    case SYS_sendto: return KEEP_AT_SEND;
    case SYS_sendmsg: return KEEP_AT_SENDMSG;
    case SYS_sendfile: return KEEP_AT_SENDFILE;
    case SYS_close: return KEEP_AT_CLOSE;
    case SYS_shutdown: return KEEP_AT_SHUTDOWN;
    default: return taken_by(call) > 0 ? KEEP_AT_LOCK : 0;
    }
}

int keep_matches(const struct keep_call *call, const volatile struct keep_rule *rule)
{
    uint32_t bit = bit_of(call);
    if (!(rule->calls & bit))
        return 0;
    if (!rule->on || bit & KEEP_WAITS)
        return 1;
    return (rule->on & (is_accepted(call->fd) ? KEEP_ON_ACCEPTED : KEEP_ON_OTHER)) != 0;
}

/* Nothing of a request is left: a crash needs no replay. */
static void note_between(void)
{
    keep_news->between = has_begun && !is_under_way && locks == locks_at_begin;
}

void keep_note_lock(uint32_t kind, int taken)
{
    if (!keep_orders->moments || !(keep_orders->locks & kind))
        return;
    locks += taken;
    if (keep_orders->ends.calls)
        note_between();
}

static void note_locks(const struct keep_call *call, long ret)
{
    if (ret < 0)
        return;
    int taken = taken_by(call);
    if (taken)
        keep_note_lock(call->nr == SYS_flock ? KEEP_LOCK_FLOCK :
            call->nr == SYS_fcntl ? KEEP_LOCK_FCNTL : KEEP_LOCK_SEMOP, taken);
}

static void note_descriptors(const struct keep_call *call, long ret)
{
    if (ret < 0)
        return;
    switch (call->nr) {
    case SYS_accept:
    case SYS_accept4: set_accepted(ret, 1); break;
    case SYS_close: set_accepted(call->fd, 0); break;
    case SYS_dup:
    case SYS_dup2:
    case SYS_dup3: set_accepted(ret, is_accepted(call->fd)); break;
    case SYS_fcntl:
        if (call->arg[1] == F_DUPFD || call->arg[1] == F_DUPFD_CLOEXEC)
            set_accepted(ret, is_accepted(call->fd));
        break;
    default: break;
    }
}

void keep_no_request(void)
{
    has_begun = is_under_way = locks = locks_at_begin = 0;
}

/* Until there is a checkpoint a crash would be the end: the keeper takes it while this waits. */
static void wait_for_first(void)
{
    const struct timespec step = {0, FIRST_STEP_NS};
    keep_ring();
    /* Of a child just forked the keeper may not have begun. */
    for (int i = 0; i < FIRST_STEPS && !keep_orders->kept && !(keep_orders->keeper & FUTEX_OWNER_DIED); i++)
        keep_plain(SYS_futex, (long)&keep_orders->kept, FUTEX_WAIT, 0, (long)&step, 0, 0);
}

/* A new request begins here: what the log has before is not needed, and what a dropped one has
 * left in the tail neither. */
static void begin_request(void)
{
    if (!has_begun) {
        has_begun = 1;
        locks_at_begin = locks;
        keep_news->moment = keep_both->head;
        keep_news->moment_count++;
        ORDER();
        keep_news->at_moment = 1;
        if (!keep_orders->kept)
            wait_for_first();
    }
    if (keep_both->mode == KEEP_TAIL) {
        keep_both->tail_at = keep_both->tail_end = 0;
        keep_both->mode = KEEP_RECORD;
    }
    is_under_way = 0;
    if (keep_both->mode != KEEP_REPLAY)
        keep_news->moment = keep_both->head;
    keep_news->between = 0;
    ORDER();
    keep_news->at_moment = 1;
    uint32_t asked = keep_orders->ask;
    if (__builtin_expect(asked != 0, 0) && keep_news->busy == 0)
        keep_park(asked);
}

/* Reading and taking a lock are a begin only where no request is under way: it may have several. */
static int begins(const struct keep_call *call)
{
    struct keep_rule rule = {.calls = keep_orders->moments, .on = keep_orders->begins_on};
    return keep_matches(call, &rule) && (bit_of(call) & KEEP_WAITS & ~(uint32_t)KEEP_AT_LOCK || !is_under_way);
}

int keep_lock_begins(void)
{
    if (!(keep_orders->moments & KEEP_AT_LOCK) || is_under_way)
        return 0;
    begin_request();
    return 1;
}

void keep_lock_begun(int is_taken)
{
    keep_news->at_moment = 0;
    is_under_way = is_taken;
}

long keep_logged(struct keep_call *call)
{
    if (!keep_serves || !keep_log || !keep_orders->rules)
        return keep_log_call(call);
    long ret;
    if (keep_orders->moments && begins(call)) {
        /* An answer of 0 is a success, unlike at calls that wait for a time, or read. */
        int is_done = (bit_of(call) & (KEEP_AT_ACCEPT | KEEP_AT_LOCK)) != 0;
        begin_request();
        ret = keep_log_call(call);
        keep_news->at_moment = 0;
        is_under_way = ret > 0 || (ret == 0 && is_done);
    } else {
        int is_end = keep_orders->moments && keep_matches(call, &keep_orders->ends);
        ret = keep_log_call(call);
        if (is_end && ret >= 0) {
            is_under_way = 0;
            note_between();
        }
    }
    note_locks(call, ret);
    note_descriptors(call, ret);
    return ret;
}
