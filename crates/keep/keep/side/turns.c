/* The order in which threads lock mutexes, in a log.
 *
 * Only the serving thread's calls are logged. What it reads of other threads' work it reads under
 * a mutex (Redis: whether a thread's fsync has ended), so a replay is as before if it locks each
 * mutex after as many locks by other threads as before. Each of its locks is an entry of the log,
 * with that number. In a replay it waits for them, and they wait for it.
 *
 * Invariant: others[n] counts the locks of mutexes with number n by other threads than the serving
 * one, and changes only while such a mutex is locked. It is rolled back with the rest.
 *
 * An order is advice: a lock that does not come in time is not waited for any more in that replay,
 * and a lock that the log does not have, or has elsewhere, is no other history. The allocator's
 * mutexes are left out: its own threads run by the clock.
 */
#include "own.h"
#include <errno.h>
#include <sys/syscall.h>

#define MUTEXES 4096
/* How long a turn is waited for: first by yielding, then in steps of 50 us and what the kernel
 * adds. */
#define YIELDS 50
#define STEPS 5000
#define STEP_NS 50000

/* Weak: glibc has it from 2.32 on. */
extern char __libc_single_threaded __attribute__((weak));

static uint32_t others[MUTEXES];
/* The replay in which the log had no more turn for this number, and that whose order is lost. */
static uint32_t none_ahead[MUTEXES], lost;

int keep_has_turns(void)
{
    return keep_log && !keep_forks && !keep_in_heap && !(&__libc_single_threaded && __libc_single_threaded);
}

static int number_of(const pthread_mutex_t *mutex)
{
    return (int)(((uint64_t)(uintptr_t)mutex >> 3) * 0x9e3779b97f4a7c15ull >> 52);
}

static int is_ordered(void)
{
    return keep_both->mode == KEEP_REPLAY && lost != keep_orders->replay;
}

/* Lets others have the mutex for a moment; 0: that was often enough. */
static int let_go(const struct keep_mutex *of, int nth)
{
    const struct timespec step = {0, STEP_NS};
    if (nth == YIELDS + STEPS) {
        lost = keep_orders->replay;
        return 0;
    }
    of->unlock(of->mutex);
    if (nth < YIELDS)
        keep_plain(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
    else
        keep_plain(SYS_nanosleep, (long)&step, 0, 0, 0, 0, 0);
    of->lock(of->mutex);
    return 1;
}

/* The entry that the replay comes to next; NULL: there is none. */
static struct keep_entry *next(uint64_t *at)
{
    while (*at < keep_both->head) {
        struct keep_entry *entry = keep_entry_at(*at);
        if (!entry->jump)
            return entry;
        *at = entry->jump > *at ? entry->jump : keep_both->head;
    }
    return NULL;
}

static void serving_follows(const struct keep_mutex *of, int number)
{
    uint64_t at = keep_both->cursor;
    const struct keep_entry *entry = next(&at);
    if (!entry || entry->nr != KEEP_TURN || entry->fd != number)
        return;
    for (int nth = 0; is_ordered() && others[number] < (uint32_t)entry->ret && let_go(of, nth);)
        nth++;
    if (keep_both->mode == KEEP_REPLAY)
        keep_both->cursor = at + keep_size_of(entry);
}

static void serving_notes(int number)
{
    const uint64_t bytes = sizeof(struct keep_entry);
    if (keep_news->busy || keep_signals->taken != keep_signals->come ||
        keep_both->head + bytes + KEEP_LOG_RESERVE > keep_orders->oldest + keep_orders->log_bytes)
        return;
    struct keep_call call = {.log_nr = KEEP_TURN, .fd = number};
    keep_news->busy++;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    keep_under_way = 1;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    keep_end(&call, others[number]);
}

/* Whether the serving thread comes first. */
static int is_servings(int number)
{
    if (none_ahead[number] == keep_orders->replay)
        return 0;
    uint64_t at = keep_both->cursor;
    for (const struct keep_entry *entry; (entry = next(&at)); at += keep_size_of(entry))
        if (entry->nr == KEEP_TURN && entry->fd == number)
            return (uint32_t)entry->ret <= others[number];
    none_ahead[number] = keep_orders->replay;
    return 0;
}

void keep_take_turn(const struct keep_mutex *of)
{
    int number = number_of(of->mutex);
    if (!keep_serves) {
        for (int nth = 0; is_ordered() && is_servings(number) && let_go(of, nth);)
            nth++;
        __atomic_add_fetch(&others[number], 1, __ATOMIC_SEQ_CST);
    } else if (keep_both->mode == KEEP_REPLAY) {
        serving_follows(of, number);
    } else if (keep_both->mode != KEEP_OFF) {
        serving_notes(number);
    }
}
