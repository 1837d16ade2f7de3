/* Which locks each thread of an Apache child holds and waits for. In an area: the threads write,
 * the watchdog's task reads a snapshot of it. No Apache here, so that the preloaded library needs
 * none of its symbols.
 *
 * A snapshot may catch a slot half written. The task therefore reports only what two snapshots
 * agree on.
 */
#ifndef ORBIT_APACHE_LOCKS_H
#define ORBIT_APACHE_LOCKS_H

#include <stdint.h>

/* Locks of one thread that are recorded; it may hold more. */
#define MOST_HELD 7
/* Threads of a child that are recorded; others go unseen. */
#define MOST_THREADS 1024

struct held_lock {
    const void *lock;
    const void *site; /* the code that took it */
    int64_t since_ms; /* CLOCK_MONOTONIC_COARSE */
};

/* Written by its thread only. */
struct thread_slot {
    int32_t tid; /* 0: free */
    int32_t held_count;
    const void *waits_for;
    struct held_lock held[MOST_HELD];
} __attribute__((aligned(64)));

struct lock_table {
    struct thread_slot slots[MOST_THREADS];
};

/* Exported by the preloaded library: from now on this process's threads record their locks here;
 * NULL: no longer. */
void orbit_apr_record(struct lock_table *table);

#endif
