/* The log of calls: recording, answering from it after a rollback, and the safe points.
 *
 * In KEEP_REPLAY the program runs again from a checkpoint and every logged call is answered in the
 * log's order. Nothing of it happens outside: at the end of the log, or where an input is to be
 * dropped, it waits for the keeper, which has it continue only if it is proven: each call was
 * the one that the log has, and gave out the same bytes. Then it continues in KEEP_RECORD.
 * Behind a dropped input what is left of the log becomes the tail: those calls were made, the
 * kernel has seen them. In KEEP_TAIL a call is answered from the tail if that has one of its kind
 * on its descriptor.
 */
#include "own.h"
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

/* Entries of the tail that are searched for one call. */
#define TAIL_SEARCHED 4096
/* Connections of one replay that are ended since they were sent other bytes. */
#define DIFFERING 64
/* Bytes of the log whose pages are mapped together: no more than a sixteenth of the smallest
 * log. */
#define LOG_PART (256u << 10)
/* MADV_POPULATE_READ, Linux 5.14. It maps what the keeper has prepared, sixteen pages at a time,
 * and shared memory writable. */
#define POPULATE_READ 22
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
/* Waits for input that fail in a row, from which on the keeper is asked to put the program back;
 * again at each power of two. */
#define FAILED_WAITS 64
/* How long a thread waits for the keeper at a safe point, in steps of PARK_STEP_NS. */
#define PARK_STEPS 40
#define PARK_STEP_NS 25000000

__thread int keep_under_way __attribute__((tls_model("initial-exec")));
__thread int keep_deferred __attribute__((tls_model("initial-exec")));
__thread siginfo_t keep_deferred_info __attribute__((tls_model("initial-exec")));

/* What a descriptor is: 0 not known, 1 a socket, 2 something else. */
static unsigned char kind_of[65536];

uint64_t keep_hash(uint64_t hash, const void *at, size_t bytes)
{
    const unsigned char *p = at;
    hash ^= 0x9e3779b97f4a7c15ull + bytes;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = (hash ^ word) * 0xff51afd7ed558ccdull;
        hash ^= hash >> 32;
    }
    for (; bytes; bytes--)
        hash = (hash ^ *p++) * 0x100000001b3ull;
    return hash ^ hash >> 29;
}

int keep_keeper_lives(void)
{
    uint32_t word = keep_orders->keeper;
    return word != 0 && !(word & FUTEX_OWNER_DIED);
}

void keep_ring(void)
{
    __atomic_add_fetch(&keep_news->bell, 1, __ATOMIC_SEQ_CST);
    keep_plain(SYS_futex, (long)&keep_news->bell, FUTEX_WAKE, 1, 0, 0, 0);
}

/* Waits, bounded, while `*word` is `value` and the keeper lives. */
static void wait_for_keeper(const volatile uint32_t *word, uint32_t value)
{
    const struct timespec step = {0, PARK_STEP_NS};
    for (int i = 0; i < PARK_STEPS && *word == value && keep_keeper_lives(); i++)
        keep_plain(SYS_futex, (long)word, FUTEX_WAIT, value, (long)&step, 0, 0);
}

__attribute__((noinline)) void keep_park(uint32_t asked)
{
    keep_news->parked = 1;
    keep_ring();
    wait_for_keeper(&keep_orders->ask, asked);
    keep_news->parked = 0;
}

static int is_socket(int fd)
{
    struct stat st;
    if ((unsigned)fd >= sizeof kind_of)
        return 0;
    if (!kind_of[fd])
        kind_of[fd] = keep_plain(SYS_fstat, fd, (long)&st, 0, 0, 0, 0) == 0 && S_ISSOCK(st.st_mode) ? 1 : 2;
    return kind_of[fd] == 1;
}

static int brings_input(const struct keep_call *call, long ret)
{
    if (ret > 0 && keep_orders->input.calls)
        return keep_matches(call, &keep_orders->input);
    return ret > 0 &&
           (call->log_nr == SYS_read || call->log_nr == SYS_recvfrom || call->log_nr == SYS_readv ||
            call->log_nr == SYS_recvmsg) &&
           is_socket(call->fd);
}

/* Bytes that the call has left in its outs, given what it returned. */
static size_t filled(const struct keep_call *call, long ret)
{
    size_t room = 0;
    for (int i = 0; i < call->outs; i++)
        room += keep_outs(call)[i].bytes;
    size_t bytes = 0;
    switch (call->fill) {
    case FILL_NONE: break;
    case FILL_RETURNED: bytes = ret > 0 ? (size_t)ret : 0; break;
    case FILL_EVENTS: bytes = ret > 0 ? (size_t)ret * 12 : 0; break;
    case FILL_ALL: bytes = ret >= 0 ? room : 0; break;
    case FILL_CUT: bytes = ret == -EINTR ? room : 0; break;
    }
    return bytes < room ? bytes : room;
}

/* Numbers that are another file from here on. */
static void note_closed(const struct keep_call *call, long ret)
{
    if (call->log_nr == SYS_close && (unsigned)call->fd < sizeof kind_of)
        kind_of[call->fd] = 0;
    if (call->log_nr == SYS_close_range)
        memset(kind_of, 0, sizeof kind_of);
    switch (call->log_nr) {
    case SYS_accept:
    case SYS_accept4:
    case SYS_socket:
    case SYS_dup:
    case SYS_dup2:
    case SYS_dup3:
    case SYS_fcntl:
    case SYS_openat:
        if ((unsigned long)ret < sizeof kind_of)
            kind_of[ret] = 0;
    }
}

/* The log has come to its next part. */
static __attribute__((noinline)) void next_part(uint64_t at, uint64_t next)
{
    /* In its first round its pages are mapped together: a fault for each would cost several
     * times as much. A kernel that cannot do it faults. */
    if (next < keep_orders->log_bytes)
        keep_plain(SYS_madvise, (long)keep_entry_at(next & ~(uint64_t)(LOG_PART - 1)), LOG_PART, POPULATE_READ, 0, 0,
            0);
    /* Sixteen times a round the keeper sees how full the log is. */
    if ((at ^ next) & ~(keep_orders->log_bytes / 16 - 1))
        keep_ring();
}

/* The entry that ends at `next` is whole. */
static inline void advance(uint64_t at, uint64_t next)
{
    ORDER();
    keep_both->head = next;
    if (__builtin_expect(((at ^ next) & ~(uint64_t)(LOG_PART - 1)) != 0, 0))
        next_part(at, next);
}

static void append(struct keep_call *call, long ret)
{
    uint64_t at = keep_both->head;
    struct keep_entry *entry = keep_entry_at(at);
    size_t left = filled(call, ret);
    *entry = (struct keep_entry){
        .nr = call->log_nr, .fd = call->fd, .ret = ret, .bytes = (uint32_t)left, .hash = call->hash};
    unsigned char *to = (unsigned char *)(entry + 1);
    for (int i = 0; i < call->outs && left; i++) {
        size_t n = keep_outs(call)[i].bytes < left ? keep_outs(call)[i].bytes : left;
        memcpy(to, keep_outs(call)[i].at, n);
        to += n;
        left -= n;
    }
    if (brings_input(call, ret))
        keep_both->last_input = at;
    note_closed(call, ret);
    advance(at, at + keep_size_of(entry));
}

static void take_bytes(struct keep_call *call, const struct keep_entry *entry)
{
    const unsigned char *from = (const unsigned char *)(entry + 1);
    size_t left = entry->bytes;
    for (int i = 0; i < call->outs && left; i++) {
        size_t n = keep_outs(call)[i].bytes < left ? keep_outs(call)[i].bytes : left;
        memcpy(keep_outs(call)[i].at, from, n);
        from += n;
        left -= n;
    }
}

/* What this replay has given out otherwise than before the crash. In the program's memory: a
 * rollback forgets it. */
static struct {
    uint32_t replies, lines;
    int count;
    struct {
        int fd;
        uint64_t after; /* position behind the output's entry */
    } connections[DIFFERING];
} differing;

/* Whether the connection is still the one it was at `at`: the log has no later call that closes it
 * or gives its number to another one. */
static int is_still(int fd, uint64_t at)
{
    for (; at < keep_both->head; at += keep_size_of(keep_entry_at(at))) {
        const struct keep_entry *later = keep_entry_at(at);
        if ((later->nr == SYS_close && later->fd == fd) || later->nr == SYS_close_range)
            return 0;
        if ((later->nr == SYS_accept || later->nr == SYS_accept4 || later->nr == SYS_socket || later->nr == SYS_dup ||
             later->nr == SYS_dup2 || later->nr == SYS_dup3) &&
            later->ret == fd)
            return 0;
    }
    return 1;
}

/* Those bytes were sent, so the connections are of no use any more. */
static void end_differing(void)
{
    for (int i = 0; i < differing.count; i++)
        if (is_still(differing.connections[i].fd, differing.connections[i].after))
            keep_plain(SYS_shutdown, differing.connections[i].fd, SHUT_RDWR, 0, 0, 0, 0);
    memset(&differing, 0, sizeof differing);
}

static void compare(struct keep_call *call, const struct keep_entry *entry, uint64_t at)
{
    if (entry->hash == call->hash)
        return;
    keep_news->mismatch_fd = call->fd;
    if (!is_socket(call->fd) || (keep_orders->reply.calls && !keep_matches(call, &keep_orders->reply))) {
        differing.lines++;
        return;
    }
    differing.replies++;
    if (differing.count < DIFFERING) {
        differing.connections[differing.count].fd = call->fd;
        differing.connections[differing.count++].after = at + keep_size_of(entry);
    }
}

/* The replay has come to its end. Returns if it is proven: only from here on does the program
 * touch anything outside. */
static void prove(void)
{
    if (keep_is_unsure()) {
        keep_report_replay(KEEP_LEFT);
        keep_die();
    }
    keep_news->mismatched += differing.replies;
    keep_news->other_lines += differing.lines;
    /* Without its keeper it continues only if nothing differs. */
    if (!keep_report_replay(KEEP_ENDED) && (differing.replies || differing.lines))
        keep_die();
    end_differing();
}

static void end_replay(void)
{
    keep_unconfine();
    keep_both->mode = keep_both->tail_at < keep_both->tail_end ? KEEP_TAIL : KEEP_RECORD;
    keep_ring();
}

static int is_signal(const struct keep_entry *entry)
{
    return entry->nr == KEEP_SIGNAL || entry->nr == KEEP_SIGNAL_AFTER;
}

static int is_used(const struct keep_entry *entry)
{
    return entry->nr == KEEP_TURN || entry->used == KEEP_DEAD ||
           (entry->used != 0 && entry->used == keep_orders->replay);
}

/* History continues at the head; what the log has from `from` on is the tail. `entry` is the input
 * that is dropped. */
static void leave_order(struct keep_entry *entry, uint64_t from)
{
    if (!(keep_both->tail_at < keep_both->tail_end) || from < keep_both->tail_at)
        keep_both->tail_at = from;
    keep_both->tail_end = keep_both->head;
    /* Signals have no call that would find them there: their handlers run before the next one. */
    for (uint64_t at = from; at < keep_both->head; at += keep_size_of(keep_entry_at(at)))
        if (is_signal(keep_entry_at(at)) && !is_used(keep_entry_at(at))) {
            keep_put_signal(keep_entry_at(at)->fd, keep_entry_at(at) + 1);
            keep_entry_at(at)->used = KEEP_DEAD;
        }
    entry->jump = keep_both->head;
    keep_both->cursor = keep_both->head;
    end_replay();
}

/* In a replay: the handler runs whose entry is next. */
static void handle_again(struct keep_entry *entry, uint64_t at)
{
    struct keep_waiting waiting = {.signal = (uint64_t)(uint32_t)entry->fd};
    memcpy(waiting.info, entry + 1, sizeof waiting.info);
    entry->used = keep_orders->replay;
    keep_news->replayed++;
    ORDER();
    keep_both->cursor = at + keep_size_of(entry);
    keep_handle(&waiting);
}

static int answer_in_order(struct keep_call *call, long *ret)
{
    struct keep_entry *entry;
    keep_confine();
    for (;;) {
        uint64_t at = keep_both->cursor;
        if (at >= keep_both->head) {
            prove();
            end_replay();
            return 0;
        }
        entry = keep_entry_at(at);
        /* Positions only grow; anything else is a log that the program has ruined. */
        if (entry->jump)
            keep_both->cursor = entry->jump > at ? entry->jump : keep_both->head;
        else if (entry->nr == KEEP_TURN) /* a mutex that was not locked this time */
            keep_both->cursor = at + keep_size_of(entry);
        else
            break;
    }
    uint64_t at = keep_both->cursor;
    if (is_signal(entry)) {
        handle_again(entry, at);
        return 0;
    }
    int is_hidden = call->is_opaque && entry->ret >= 0;
    if (entry->nr != call->log_nr || entry->fd != call->fd || is_hidden) {
        keep_news->asked_nr = call->log_nr;
        keep_news->asked_fd = call->fd;
        keep_news->logged_nr = is_hidden ? KEEP_UNLOGGED : entry->nr;
        keep_news->logged_fd = entry->fd;
        keep_news->diverged++;
        keep_report_replay(KEEP_LEFT);
        keep_die();
    }
    if (at == keep_orders->drop_at) {
        prove();
        entry->used = KEEP_DEAD;
        leave_order(entry, at + keep_size_of(entry));
        if (!keep_leave_out(call, ret))
            return 0;
        append(call, *ret);
        return 1;
    }
    compare(call, entry, at);
    take_bytes(call, entry);
    entry->used = keep_orders->replay;
    *ret = entry->ret;
    if (brings_input(call, *ret))
        keep_both->last_input = at;
    note_closed(call, *ret);
    keep_news->replayed++;
    ORDER();
    keep_both->cursor = at + keep_size_of(entry);
    return 1;
}

static int answer_from_tail(struct keep_call *call, long *ret)
{
    uint64_t at = keep_both->tail_at, end = keep_both->tail_end;
    while (at < end && is_used(keep_entry_at(at)))
        at += keep_size_of(keep_entry_at(at));
    keep_both->tail_at = at;
    if (at >= end) {
        keep_both->mode = KEEP_RECORD;
        return 0;
    }
    if (call->is_fresh)
        return 0;
    for (int i = 0; at < end && i < TAIL_SEARCHED; i++, at += keep_size_of(keep_entry_at(at))) {
        struct keep_entry *entry = keep_entry_at(at);
        if (is_used(entry) || entry->nr != call->log_nr || entry->fd != call->fd)
            continue;
        compare(call, entry, at);
        end_differing();
        take_bytes(call, entry);
        *ret = entry->ret;
        entry->used = KEEP_DEAD;
        keep_news->replayed++;
        append(call, *ret);
        return 1;
    }
    return 0;
}

int keep_is_logging(void)
{
    return keep_serves && keep_log && keep_both->mode != KEEP_OFF;
}

/* Runs the handlers that wait, each after its entry in the log. */
static void deliver(uint32_t where)
{
    struct keep_waiting waiting;
    /* A child that is not kept has forgotten the log; its handlers are its own. */
    if (!keep_both)
        return;
    while (keep_both->mode != KEEP_REPLAY && keep_take_signal(&waiting)) {
        struct keep_call call = {.log_nr = where,
                                 .fd = (int)waiting.signal,
                                 .fill = FILL_ALL,
                                 .outs = 1,
                                 .out = {{waiting.info, sizeof waiting.info}}};
        if (keep_both->mode != KEEP_OFF)
            append(&call, 0);
        keep_handle(&waiting);
    }
}

/* Whether the log has room for the call; if not, the keeper is asked for a checkpoint, which
 * frees some. */
static int has_room(const struct keep_call *call)
{
    uint64_t need = sizeof(struct keep_entry) + 8 + KEEP_LOG_RESERVE;
    for (int i = 0; i < call->outs; i++)
        need += keep_outs(call)[i].bytes;
    for (int i = 0; i < PARK_STEPS; i++) {
        uint64_t oldest = keep_orders->oldest;
        if (keep_both->head + need <= oldest + keep_orders->log_bytes) {
            keep_news->wanted = 0;
            return 1;
        }
        if (!keep_keeper_lives() || need > keep_orders->log_space / 4)
            break;
        keep_news->wanted = need;
        keep_ring();
        const struct timespec step = {0, PARK_STEP_NS};
        keep_plain(SYS_futex, (long)&keep_news->bell, FUTEX_WAIT, keep_news->bell, (long)&step, 0, 0);
    }
    keep_both->mode = KEEP_OFF;
    keep_news->log_lost++;
    return 0;
}

static int answered(struct keep_call *call, long *ret)
{
    while (keep_both->mode == KEEP_REPLAY)
        if (answer_in_order(call, ret))
            return 1;
    return keep_both->mode == KEEP_TAIL && answer_from_tail(call, ret);
}

/* A handler that ran at the end of this call runs there again, and those that have come
 * meanwhile now. */
static void deliver_after(void)
{
    if (keep_both->mode != KEEP_REPLAY) {
        if (__builtin_expect(keep_signals->taken != keep_signals->come, 0))
            deliver(KEEP_SIGNAL_AFTER);
        return;
    }
    while (keep_both->mode == KEEP_REPLAY && keep_both->cursor < keep_both->head &&
           keep_entry_at(keep_both->cursor)->nr == KEEP_SIGNAL_AFTER && !keep_entry_at(keep_both->cursor)->jump)
        handle_again(keep_entry_at(keep_both->cursor), keep_both->cursor);
}

static void deliver_before(void)
{
    if (__builtin_expect(keep_signals->taken != keep_signals->come, 0))
        deliver(KEEP_SIGNAL);
}

static void enter(void)
{
    keep_news->busy++;
    ORDER();
    deliver_before();
}

/* The call's entry is in the log: a signal that was deferred comes. `busy` is lowered last: no
 * checkpoint has a deferred one. */
static void leave(void)
{
    ORDER();
    keep_under_way = 0;
    ORDER();
    int sig = keep_deferred;
    if (__builtin_expect(sig != 0, 0)) {
        keep_deferred = 0;
        keep_send(sig, &keep_deferred_info);
    }
    keep_news->busy--;
}

int keep_begin(struct keep_call *call, long *ret)
{
    if (!keep_is_logging() || (keep_both->mode != KEEP_REPLAY && !has_room(call)))
        return 0;
    enter();
    if (!answered(call, ret)) {
        keep_under_way = 1;
        ORDER();
        return 0;
    }
    deliver_after();
    leave();
    return 1;
}

/* Safe point: nothing is under way. */
static void finish(void)
{
    leave();
    uint32_t asked = keep_orders->ask;
    /* In request mode the one safe point is where the next request is waited for. */
    if (__builtin_expect(asked != 0, 0) && keep_news->busy == 0 && !keep_orders->moments)
        keep_park(asked);
}

void keep_end(struct keep_call *call, long ret)
{
    if (!keep_is_logging() || keep_news->busy == 0)
        return;
    append(call, ret);
    /* Handlers of the program run as anywhere else. */
    keep_under_way = 0;
    deliver_after();
    finish();
}

void keep_cancel(void)
{
    if (keep_is_logging() && keep_news->busy != 0)
        finish();
}

/* A server asks for the time several times a request: keep_begin, the clock and keep_end in one. */
int keep_record_clock(clockid_t clock, struct timespec *to)
{
    if (!keep_log || keep_both->mode != KEEP_RECORD || keep_signals->taken != keep_signals->come)
        return 0;
    const uint64_t bytes = sizeof(struct keep_entry) + sizeof *to;
    if (keep_both->head + bytes + KEEP_LOG_RESERVE > keep_orders->oldest + keep_orders->log_bytes)
        return 0;
    keep_news->busy++;
    ORDER();
    keep_under_way = 1;
    ORDER();
    if (__builtin_expect(keep_clock_gettime(clock, to) != 0, 0)) {
        /* It fails again, the long way. */
        keep_under_way = 0;
        finish();
        return 0;
    }
    uint64_t at = keep_both->head;
    struct keep_entry *entry = keep_entry_at(at);
    *entry = (struct keep_entry){.nr = SYS_clock_gettime, .fd = clock, .bytes = sizeof *to};
    memcpy(entry + 1, to, sizeof *to);
    advance(at, at + bytes);
    keep_under_way = 0;
    deliver_after();
    finish();
    return 1;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    keep_clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* The call, made until it is done: a checkpoint interrupts it, and then only the rest of its
 * time is left. */
static long made(struct keep_call *call, uint64_t deadline)
{
    for (;;) {
        if (call->timeout_arg && deadline) {
            uint64_t now = now_ms();
            call->arg[call->timeout_arg - 1] = (long)(deadline > now ? deadline - now : 0);
        }
        if (!keep_serves)
            return keep_call_of_other(call);
        keep_under_way = keep_is_logging();
        ORDER();
        long ret =
            keep_raw(call->nr, call->arg[0], call->arg[1], call->arg[2], call->arg[3], call->arg[4], call->arg[5]);
        if (ret != KEEP_SIGNALLED && ret != -EINTR)
            return ret;
        keep_under_way = 0;
        deliver(KEEP_SIGNAL);
        if (ret == -EINTR)
            return ret;
    }
}

static uint64_t deadline_of(const struct keep_call *call)
{
    int timeout = call->timeout_arg ? (int)call->arg[call->timeout_arg - 1] : 0;
    return timeout > 0 ? now_ms() + (uint64_t)timeout : 0;
}

static int waits_for_input(const struct keep_call *call)
{
    return call->nr == SYS_epoll_wait || call->nr == SYS_epoll_pwait || call->nr == SYS_poll || call->nr == SYS_ppoll ||
           call->nr == SYS_select || call->nr == SYS_pselect6 || call->nr == SYS_accept || call->nr == SYS_accept4;
}

static long logged(struct keep_call *call)
{
    long ret;
    uint64_t deadline = 0;
    if (keep_serves && !keep_news->has_waited && (waits_for_input(call) || call->nr == SYS_rt_sigsuspend)) {
        keep_news->has_waited = 1;
        keep_ring();
    }
    for (int again = 0;; again = 1) {
        if (!keep_is_logging()) {
            if (!deadline)
                deadline = deadline_of(call);
            do
                ret = made(call, again ? deadline : 0);
            while (ret == KEEP_AGAIN && (again = 1) && !keep_is_logging());
            /* Logging may have begun while this one waited: then it is logged like any other. A
             * replay may begin here too. */
            if (ret == KEEP_AGAIN)
                continue;
            if (!keep_serves && keep_log && !keep_forks && brings_input(call, ret))
                __atomic_add_fetch(&keep_news->others_read, 1, __ATOMIC_SEQ_CST);
            if (keep_is_logging() && (keep_both->mode == KEEP_REPLAY || has_room(call))) {
                keep_news->busy++;
                ORDER();
                keep_under_way = 1;
                if (!answered(call, &ret))
                    append(call, ret);
                keep_under_way = 0;
                deliver_after();
                finish();
            }
            return ret;
        }
        if (keep_both->mode != KEEP_REPLAY && !has_room(call))
            continue;
        enter();
        if (!answered(call, &ret)) {
            if (!deadline)
                deadline = deadline_of(call);
            ret = made(call, again ? deadline : 0);
            if (ret == KEEP_AGAIN || (ret == -EINTR && keep_deferred)) {
                leave();
                continue;
            }
            append(call, ret);
            /* Handlers of the program run as anywhere else. */
            keep_under_way = 0;
        }
        deliver_after();
        finish();
        return ret;
    }
}

/* A server whose waits for input fail at once, again and again, is ruined: it serves nobody, and
 * does not crash. */
static __attribute__((noinline)) void note_failed_wait(unsigned failed, long ret)
{
    if (failed < FAILED_WAITS || failed & (failed - 1) || keep_both->mode == KEEP_REPLAY || !keep_is_logging())
        return;
    uint32_t replay = keep_orders->replay;
    /* It has brought no request: there is nothing to be replayed. */
    if (keep_orders->moments)
        keep_news->moment = keep_both->head;
    keep_news->failed_errno = (int32_t)ret;
    keep_news->failed_waits++;
    keep_ring();
    wait_for_keeper(&keep_orders->replay, replay);
}

long keep_log_call(struct keep_call *call)
{
    /* The program's memory, so that a rollback undoes it. */
    static unsigned failed;
    long ret = logged(call);
    if (__builtin_expect(ret == -EINVAL || ret == -EBADF || ret == -EFAULT || ret == -ENOTSOCK, 0)) {
        if (keep_serves && keep_log && waits_for_input(call))
            note_failed_wait(++failed, ret);
    } else if (failed && waits_for_input(call)) {
        failed = 0;
    }
    return ret;
}
