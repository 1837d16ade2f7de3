/*
 * Calls between guests of a session: a channel in the shared memory carries one request at a time
 * from a caller to a receiver.
 *
 * A call moves two cache lines, each once in each direction: the caller writes the request's line
 * and waits on the reply's, the receiver the other way round. Both sides spin before they sleep, so
 * that two that are awake need no system call. A side for which spinning does not help (the other
 * one has the same CPU) soon does without.
 *
 * The words of a request and the result are read and written as by any function: a wrong address is
 * a fault.
 */
#include "block.h"

#define EAGER_SPINS 100   /* of 4 cycles */
/* Each so many waits spin as long as ever: two that both sleep find out that both could spin. */
#define TRY_AGAIN 256
#define SLEEP_NS 50000000 /* between two checks that the other side is alive */

/* Whether no such thread exists, or only its entry in the table of processes. */
static int has_ended(u32 tid) {
    char text[128], *end = append_string(text, "/proc/", sizeof text);
    if (SYS2(__NR_tkill, tid, 0) == -ESRCH) return 1;
    append_string(append_number(end, tid), "/stat", 8);
    i64 file = SYS3(__NR_open, text, O_RDONLY | O_CLOEXEC, 0);
    if (is_error(file)) return file == -ENOENT;
    i64 n = SYS3(__NR_read, file, text, sizeof text);
    SYS1(__NR_close, file);
    /* The name ends with the last parenthesis; it has 15 bytes at most. */
    i64 at = n - 1;
    while (at > 0 && text[at] != ')') at--;
    return n <= 0 || (at + 2 < n && (text[at + 2] == 'Z' || text[at + 2] == 'X'));
}

/*
 * Spins until `*word` is `value` (`equal`), or is another. Returns whether it is. What did not help
 * is tried half as long the next time.
 */
static int spin(struct block *block, volatile u32 *word, u32 value, int equal) {
    u32 limit = block->waits++ % TRY_AGAIN ? block->spins : MAX_SPINS;
    for (u32 spins = 0;; spins++) {
        if ((__atomic_load_n(word, __ATOMIC_ACQUIRE) == value) == equal) {
            if (spins) block->spins = MAX_SPINS;
            return 1;
        }
        if (spins >= limit) break;
        /* A pause costs some 40 cycles: not while the answer is due. */
        if (spins >= EAGER_SPINS) __asm__ volatile("pause");
    }
    block->spins /= 2;
    return 0;
}

/* Sleeps while `*word` is `seen`: 0, -EINTR if a signal is pending, or -ETIMEDOUT. */
static i64 sleep_while(volatile u32 *word, u32 seen) {
    u64 limit[2] = {0, SLEEP_NS};
    i64 result = wait_unless_pending(word, 0 /* FUTEX_WAIT, shared */, seen, limit);
    return result == -EAGAIN ? 0 : result;
}

static void wake(volatile u32 *word) { SYS3(__NR_futex, word, 1 /* FUTEX_WAKE, shared */, 0x7fffffff); }

static u32 exchange(volatile u32 *word, u32 value) { return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST); }

static int change(volatile u32 *word, u32 from, u32 to) {
    return __atomic_compare_exchange_n(word, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static volatile struct channel *channel_at(u64 index) { return index < CHANNELS ? &extension->channels[index] : NULL; }

/* Makes this thread the only caller. What a caller that was killed left is cleared up, or waited
 * for. */
static i64 begin_call(struct block *block, volatile struct channel *channel) {
    for (;;) {
        u32 owner = channel->owner;
        if (owner == 0 || (owner != block->tid && has_ended(owner))) {
            if (change(&channel->owner, owner, block->tid)) break;
        }
        if (block->pending) return -EINTR;
        SYS0(__NR_sched_yield);
    }
    u32 spins = 0;
    for (u32 state; (state = channel->state) != CHANNEL_IDLE && state != CHANNEL_SLEEPS;) {
        /* The receiver makes the channel idle right after its reply. */
        if (spins++ < MAX_SPINS) {
            __asm__ volatile("pause");
            continue;
        }
        /* A dead caller's request: not taken, or answered some day, or taken by a receiver that
         * is dead too. */
        if (change(&channel->state, CHANNEL_REQUEST, CHANNEL_IDLE)) break;
        if (has_ended(channel->receiver)) change(&channel->state, CHANNEL_TAKEN, CHANNEL_IDLE);
        if (block->pending) {
            channel->owner = 0;
            return -EINTR;
        }
        SYS0(__NR_sched_yield);
    }
    /* A dead caller slept. */
    u32 replies = channel->replies;
    if (replies & CALLER_SLEEPS) change(&channel->replies, replies, replies & ~CALLER_SLEEPS);
    return 0;
}

/* Waits for another value of `replies` than `seen`: 0; -EINTR if a signal comes first; -EPIPE if
 * the receiver has died. */
static i64 wait_for_reply(struct block *block, volatile struct channel *channel, u32 seen) {
    if (spin(block, &channel->replies, seen, 0) || !change(&channel->replies, seen, seen | CALLER_SLEEPS)) return 0;
    while (__atomic_load_n(&channel->replies, __ATOMIC_ACQUIRE) == (seen | CALLER_SLEEPS)) {
        i64 result = sleep_while(&channel->replies, seen | CALLER_SLEEPS), error = 0;
        if (result == -EINTR) {
            /* Taken: the signal waits for the reply. */
            if (change(&channel->state, CHANNEL_REQUEST, CHANNEL_IDLE)) error = -EINTR;
            else SYS0(__NR_sched_yield);
        }
        if (result && !error && channel->state == CHANNEL_TAKEN && has_ended(channel->receiver) &&
            change(&channel->state, CHANNEL_TAKEN, CHANNEL_IDLE))
            error = -EPIPE;
        if (error) {
            change(&channel->replies, seen | CALLER_SLEEPS, seen);
            return error;
        }
    }
    return 0;
}

i64 channel_call(struct block *block, u64 index, const u64 *words, i64 *result) {
    volatile struct channel *channel = channel_at(index);
    if (!channel) return -EINVAL;
    u64 request[CHANNEL_WORDS];
    for (u32 i = 0; i < CHANNEL_WORDS; i++) request[i] = words[i];
    /* The request's line is the receiver's: it is fetched to be written, not first to be read. */
    __asm__ volatile("prefetchw %0" ::"m"(channel->state));
    i64 error = begin_call(block, channel);
    if (error) return error;
    u32 seen = channel->replies;
    for (u32 i = 0; i < CHANNEL_WORDS; i++) channel->words[i] = request[i];
    if (exchange(&channel->state, CHANNEL_REQUEST) == CHANNEL_SLEEPS) wake(&channel->state);
    error = wait_for_reply(block, channel, seen);
    i64 answer = channel->result;
    __atomic_store_n(&channel->owner, 0, __ATOMIC_RELEASE);
    if (!error) *result = answer;
    return error;
}

i64 channel_receive(struct block *block, u64 index, u64 *words) {
    volatile struct channel *channel = channel_at(index);
    if (!channel) return -EINVAL;
    u32 before = channel->waiting;
    if (before && before != block->tid && !has_ended(before)) return -EBUSY;
    if (!change(&channel->waiting, before, block->tid)) return -EBUSY;
    if (channel->receiver != block->tid) channel->receiver = block->tid;
    i64 error = 0;
    spin(block, &channel->state, CHANNEL_REQUEST, 1);
    while (!error && !change(&channel->state, CHANNEL_REQUEST, CHANNEL_TAKEN)) {
        u32 state = channel->state;
        if (state == CHANNEL_IDLE) change(&channel->state, CHANNEL_IDLE, CHANNEL_SLEEPS);
        else if (state != CHANNEL_REQUEST && sleep_while(&channel->state, state) == -EINTR) error = -EINTR;
    }
    if (error) change(&channel->state, CHANNEL_SLEEPS, CHANNEL_IDLE);
    channel->waiting = 0;
    for (u32 i = 0; i < CHANNEL_WORDS && !error; i++) words[i] = channel->words[i];
    return error;
}

i64 channel_reply(struct block *block, u64 index, i64 result) {
    volatile struct channel *channel = channel_at(index);
    if (!channel || channel->state != CHANNEL_TAKEN || channel->receiver != block->tid) return -EINVAL;
    channel->result = result;
    /* Once the channel is idle no reply is under way: another caller, if this one was killed,
     * takes none for its own. */
    u32 before = exchange(&channel->replies, (channel->replies & ~CALLER_SLEEPS) + 2);
    channel->state = CHANNEL_IDLE;
    if (before & CALLER_SLEEPS) wake(&channel->replies);
    return 0;
}
