/* What the deadlock detector reads: the lock waits of one point in time, packed, and nothing else
 * of the server.
 *
 * Written by lock_table.c in the worker, read by task.c in the orbit. Neither needs PostgreSQL's
 * headers for it, so the task can be run and tested alone. One block of memory holds, in this
 * order:
 *
 *     struct waits | locks[lock_count] | queue[wait_count] | holds[hold_count]
 *
 * Invariants, which the writer keeps:
 *   - the waits for one lock are contiguous in queue, in the order of the lock's wait queue;
 *   - the holds of one lock are contiguous in holds;
 *   - every group is in [0, group_limit).
 */
#ifndef ORBIT_DEADLOCK_WAITS_H
#define ORBIT_DEADLOCK_WAITS_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"

/* A lock that somebody waits for. */
struct awaited_lock {
    int32_t first_wait; /* index in queue */
    int32_t wait_count;
    int32_t first_hold; /* index in holds */
    int32_t hold_count;
};

/* A process that waits for a lock. */
struct lock_wait {
    int32_t lock;       /* index in locks */
    int32_t group;      /* number of the lock group's leader: members of a group never block each other */
    uint32_t mode;      /* bit of the mode that it waits for */
    uint32_t conflicts; /* bits of the modes that this mode conflicts with */
    int64_t since;      /* when the wait began, microseconds; 0: it begins just now */
};

/* A group that holds a lock somebody waits for. Groups of which no process waits are left out:
 * they are in no cycle. */
struct lock_hold {
    int32_t group;
    uint32_t modes; /* bits of the modes held */
};

struct waits {
    int32_t lock_count;
    int32_t wait_count;
    int32_t hold_count;
    int32_t group_limit;
};

static inline size_t waits_size(int32_t locks, int32_t waits, int32_t holds)
{
    return sizeof(struct waits) + (size_t)locks * sizeof(struct awaited_lock) +
           (size_t)waits * sizeof(struct lock_wait) +
           (size_t)holds * sizeof(struct lock_hold);
}

/* Only the packed form has the arrays at these places. struct lock_wait comes before struct
 * lock_hold, and struct waits is a multiple of 8 bytes, so all are aligned. */
static inline struct awaited_lock *waits_locks(const struct waits *w)
{
    return (struct awaited_lock *)(w + 1);
}
static inline struct lock_wait *waits_queue(const struct waits *w)
{
    return (struct lock_wait *)(waits_locks(w) + w->lock_count);
}
static inline struct lock_hold *waits_holds(const struct waits *w)
{
    return (struct lock_hold *)(waits_queue(w) + w->wait_count);
}

/* A port's fault: aborts once it has found a deadlock, as MySQL bug 28523042 does. Only a
 * superuser can ask for faults. */
#define FAULT_ASSERT_ON_CYCLE FAULT_OF_PORT

/* The arguments of a call. */
struct search_args {
    const struct waits *waits; /* in the area */
    int64_t victim_window;     /* see choose_victim in task.c, microseconds */
    int32_t fault;             /* see fault.h */
    int32_t reserved;
};

/* A deadlock, as the task hands it back: a cycle of waits, each blocked by the group of the
 * next, the last by the first. The worker proves it against the live lock table before it acts. */
struct found_cycle {
    int32_t length;
    int32_t victim;  /* position in waits */
    int32_t waits[]; /* indices in queue */
};

/* Finds deadlocks. Calls report for each, with what_for passed through; the victims of those
 * reported count as no longer waiting. Returns the number of deadlocks, or -1 if there was no
 * memory. Has no other effect; runs anywhere. */
long find_deadlocks(const struct waits *waits, int64_t victim_window,
                    void (*report)(void *what_for, const struct found_cycle *cycle), void *what_for);

/* The entry function of the orbit: args is struct search_args; each cycle is pushed as one
 * update. */
long search_task(void *store, void *args);

#endif
