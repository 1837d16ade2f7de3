/*
 * Calls between guests of a session: a channel in the shared memory carries one request at a time from a caller to a
 * receiver. Both spin before they sleep, so that two that are awake need no system call: up to 400 times where that
 * helped last, less and less where it did not (the other side has the same CPU).
 */
#include "block.h"

#define MAX_SPINS 400     /* of about 40 cycles */
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

/* The other side says that it sleeps, then checks the state; so the state is set before that word is read. */
static void set_state(volatile struct channel *channel, u32 state, volatile u64 *sleeps) {
    __atomic_store_n(&channel->state, state, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(sleeps, __ATOMIC_SEQ_CST)) SYS3(__NR_futex, &channel->state, 1 /* FUTEX_WAKE, shared */, 0x7fffffff);
}

/*
 * Waits while the state is `state`; 0, -EINTR, or -EPIPE if `other` has ended. `*sleeps`
 * says meanwhile that the other side must wake this one.
 */
static i64 wait_while(struct block *block, volatile struct channel *channel, u32 state, volatile u32 *other,
                      volatile u64 *sleeps) {
    u64 wait[2] = {0, SLEEP_NS};
    /* Each 32nd time as long as ever: otherwise two that both sleep never find out that both could be awake. */
    u32 limit = ++block->waits % 32 ? block->spins : MAX_SPINS;
    for (u32 spins = 0; spins < limit; spins++) {
        if (__atomic_load_n(&channel->state, __ATOMIC_ACQUIRE) != state) {
            block->spins = MAX_SPINS;
            return 0;
        }
        __asm__ volatile("pause");
    }
    block->spins = block->spins > 32 ? block->spins / 2 : 16;
    i64 result = 0;
    __atomic_store_n(sleeps, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&channel->state, __ATOMIC_SEQ_CST) == state) {
        if (block->pending) {
            result = -EINTR;
            break;
        }
        SYS4(__NR_futex, &channel->state, 0 /* FUTEX_WAIT, shared */, state, wait);
        if (other && *other && has_ended(*other)) {
            result = -EPIPE;
            break;
        }
    }
    __atomic_store_n(sleeps, 0, __ATOMIC_RELAXED);
    return result;
}

static int change(volatile struct channel *channel, u32 from, u32 to) {
    return __atomic_compare_exchange_n(&channel->state, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static volatile struct channel *channel_at(u64 index) { return index < CHANNELS ? &extension->channels[index] : NULL; }

i64 channel_call(struct block *block, u64 index, u64 words, u64 result) {
    volatile struct channel *channel = channel_at(index);
    u64 request[6];
    if (!channel) return -EINVAL;
    if (copy_in(request, words, sizeof request)) return -EFAULT;
    while (!change(channel, CHANNEL_FREE, CHANNEL_FILLING)) {
        if (block->pending) return -EINTR;
        /* Another caller's request, which may have died with it. */
        u32 state = channel->state, holder = channel->caller;
        if (state != CHANNEL_FREE && state != CHANNEL_TAKEN && holder && has_ended(holder))
            change(channel, state, CHANNEL_FREE);
        SYS0(__NR_sched_yield);
    }
    channel->caller = block->tid;
    for (u32 i = 0; i < 6; i++) channel->words[i] = request[i];
    channel->caller_sleeps = 0;
    set_state(channel, CHANNEL_REQUEST, &channel->receiver_sleeps);
    i64 error = wait_while(block, channel, CHANNEL_REQUEST, NULL, &channel->caller_sleeps);
    if (error) {
        if (change(channel, CHANNEL_REQUEST, CHANNEL_FREE)) return error;
    }
    /* Taken: a signal waits for the reply, a dead receiver does not reply. */
    while ((error = wait_while(block, channel, CHANNEL_TAKEN, &channel->receiver, &channel->caller_sleeps)) == -EINTR)
        SYS0(__NR_sched_yield);
    i64 answer = channel->result;
    channel->caller = 0;
    set_state(channel, CHANNEL_FREE, &channel->receiver_sleeps);
    if (error) return error;
    return copy_out(result, &answer, sizeof answer);
}

i64 channel_receive(struct block *block, u64 index, u64 words) {
    volatile struct channel *channel = channel_at(index);
    if (!channel) return -EINVAL;
    u32 before = channel->waiting;
    if (before && before != block->tid && !has_ended(before)) return -EBUSY;
    if (!__atomic_compare_exchange_n(&channel->waiting, &before, block->tid, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return -EBUSY;
    channel->receiver = block->tid;
    i64 error = 0;
    while (!change(channel, CHANNEL_REQUEST, CHANNEL_TAKEN)) {
        u32 state = channel->state;
        if (state == CHANNEL_REQUEST) continue;
        error = wait_while(block, channel, state, NULL, &channel->receiver_sleeps);
        if (error) break;
    }
    channel->waiting = 0;
    if (error) return error;
    u64 request[6];
    for (u32 i = 0; i < 6; i++) request[i] = channel->words[i];
    return copy_out(words, request, sizeof request);
}

i64 channel_reply(struct block *block, u64 index, i64 result) {
    volatile struct channel *channel = channel_at(index);
    if (!channel || channel->state != CHANNEL_TAKEN || channel->receiver != block->tid) return -EINVAL;
    channel->result = result;
    set_state(channel, CHANNEL_DONE, &channel->caller_sleeps);
    return 0;
}
