/* The waits of InnoDB's transactions for each other, as the task is shown them, and the task. No
 * MariaDB here. */
#ifndef ORBIT_MARIADB_GRAPH_H
#define ORBIT_MARIADB_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"

/* A transaction that waits or is waited for. */
struct transaction {
    uint64_t id;     /* InnoDB's; younger ones have larger numbers */
    uint64_t weight; /* InnoDB's: what rolling it back would cost */
    uint64_t begun;  /* number of its wait: the latest in a cycle has closed it; 0: not known */
};

/* One transaction waits for another; indexes. Sorted by waiter. */
struct wait {
    int32_t waiter, holder;
};

/* Followed by the transactions, then the waits. */
struct graph {
    int32_t transaction_count, wait_count;
};

static inline const struct transaction *graph_transactions(const struct graph *graph)
{
    return (const struct transaction *)(graph + 1);
}

static inline const struct wait *graph_waits(const struct graph *graph)
{
    return (const struct wait *)(graph_transactions(graph) + graph->transaction_count);
}

static inline size_t graph_size(int32_t transactions, int32_t waits)
{
    return sizeof(struct graph) + (size_t)transactions * sizeof(struct transaction) +
           (size_t)waits * sizeof(struct wait);
}

/* What the task pushes for each deadlock: transactions by index, each of which waits for the
 * next, the last for the first. */
struct cycle {
    int32_t length;
    int32_t victim; /* index of a transaction */
    int32_t members[];
};

/* A port's fault: an assertion that fails once a deadlock is found, as MySQL's bug 28523042
 * does. */
#define FAULT_ASSERT FAULT_OF_PORT

struct search_args {
    const struct graph *graph;
    int32_t fault;
    int32_t reserved;
};

long search_task(void *store, void *args);

#endif
