/* The watchdog's task: finds locks that a thread holds beyond the limit, and in a second call,
 * on a second snapshot, reports their waiters and where they were taken. Its store remembers
 * what was found, so each hold is reported once in each limit. */
#include "tasks.h"

#include <dlfcn.h>
#include <orbit.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct suspect {
    int32_t tid;
    bool is_due;
    const void *lock;
    int64_t since_ms;
    int64_t reports; /* made so far */
};

/* For each lock that a slot records. */
struct history {
    struct suspect suspects[MOST_THREADS][MOST_HELD];
};

void *watch_init(void)
{
    return calloc(1, sizeof(struct history));
}

static int32_t count_waiters(const struct lock_table *table, const void *lock)
{
    int32_t waiters = 0;
    for (size_t i = 0; i < MOST_THREADS; i++)
        waiters += table->slots[i].tid != 0 && table->slots[i].waits_for == lock;
    return waiters;
}

/* Whether Apache takes this lock to hold it while it serves a request, however long that takes:
 * ap_process_request and its like do so with a mutex of the request's own. */
static bool is_of_request(const void *site)
{
    Dl_info where;
    return dladdr(site, &where) != 0 && where.dli_sname && strncmp(where.dli_sname, "ap_process_", 11) == 0;
}

/* How many limits a lock has been held for; 0: nothing to report. */
static int64_t limits_beyond(const struct watch_args *args, const struct held_lock *held)
{
    int64_t beyond = (args->now_ms - held->since_ms) / args->limit_ms;
    if (beyond <= 0 || !held->lock || (is_of_request(held->site) && count_waiters(args->table, held->lock) == 0))
        return 0;
    return beyond;
}

static int32_t recorded_locks(const struct thread_slot *slot)
{
    int32_t n = slot->tid != 0 ? slot->held_count : 0;
    return n < 0 ? 0 : n > MOST_HELD ? MOST_HELD : n;
}

static bool is_same(const struct suspect *suspect, const struct thread_slot *slot, const struct held_lock *held)
{
    return suspect->tid == slot->tid && suspect->lock == held->lock && suspect->since_ms == held->since_ms;
}

long watch_task(void *store, void *raw)
{
    const struct watch_args *args = raw;
    struct history *history = store;
    long due = 0;
    do_fault(args->fault);
    for (size_t i = 0; i < MOST_THREADS; i++) {
        const struct thread_slot *slot = &args->table->slots[i];
        for (int32_t k = 0; k < recorded_locks(slot); k++) {
            const struct held_lock *held = &slot->held[k];
            struct suspect *suspect = &history->suspects[i][k];
            int64_t beyond = limits_beyond(args, held);
            if (!is_same(suspect, slot, held))
                *suspect = (struct suspect){slot->tid, false, held->lock, held->since_ms, 0};
            suspect->is_due = beyond > suspect->reports;
            due += suspect->is_due;
        }
    }
    return due;
}

static void describe_site(const void *site, char *text, size_t size)
{
    const char *at = site;
    Dl_info where;
    if (dladdr(site, &where) == 0 || !where.dli_fname)
        snprintf(text, size, "%p", site);
    else if (where.dli_sname)
        snprintf(text, size, "%s+0x%lx in %s", where.dli_sname, (long)(at - (const char *)where.dli_saddr),
                 where.dli_fname);
    else
        snprintf(text, size, "%s+0x%lx", where.dli_fname, (long)(at - (const char *)where.dli_fbase));
}

static void add_finding(struct orbit_update *update, const struct watch_args *args, const struct thread_slot *slot,
                        const struct held_lock *held)
{
    struct long_hold hold = {0};
    hold.tid = slot->tid;
    hold.waiters = count_waiters(args->table, held->lock);
    hold.lock = (uint64_t)(uintptr_t)held->lock;
    hold.held_ms = args->now_ms - held->since_ms;
    describe_site(held->site, hold.site, sizeof hold.site);
    orbit_update_add_data(update, &hold, sizeof hold);
}

long diagnose_task(void *store, void *raw)
{
    const struct watch_args *args = raw;
    struct history *history = store;
    struct orbit_update *update = orbit_update_create();
    long found = 0;
    do_fault(args->fault);
    for (size_t i = 0; i < MOST_THREADS; i++) {
        const struct thread_slot *slot = &args->table->slots[i];
        for (int32_t k = 0; k < recorded_locks(slot); k++) {
            struct suspect *suspect = &history->suspects[i][k];
            if (!suspect->is_due || !is_same(suspect, slot, &slot->held[k]))
                continue;
            suspect->is_due = false;
            suspect->reports = limits_beyond(args, &slot->held[k]);
            add_finding(update, args, slot, &slot->held[k]);
            found++;
        }
    }
    if (found > 0)
        orbit_push(update);
    orbit_update_free(update);
    return found;
}
