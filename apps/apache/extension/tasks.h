/* What runs in orbits, and what it is given. No Apache here: a task works on these structures
 * alone. */
#ifndef ORBIT_APACHE_TASKS_H
#define ORBIT_APACHE_TASKS_H

#include "fault.h"
#include "locks.h"

#include <stdint.h>

/* A port's fault: Apache's bug 59864, a search that follows a pair of unusable workers that name
 * each other. */
#define FAULT_REDIRECT FAULT_OF_PORT

/* ---- the balancer: decisions ahead; schedule.c ---- */

/* Decisions of one call at most. */
#define MOST_AHEAD 4096
#define MOST_WORKERS 1024

/* A worker (backend) of a balancer as the task sees it. */
struct worker_row {
    int32_t status;  /* lbstatus: what it is owed */
    int32_t factor;  /* lbfactor: its share */
    int32_t set;     /* lbset: sets are tried in order */
    int32_t planned; /* decisions for it that are made already and not used yet */
    uint8_t is_usable, is_draining, is_spare, is_standby;
};

struct balancer_rows {
    int32_t count;
    int32_t reserved;
    struct worker_row rows[];
};

struct schedule_args {
    const struct balancer_rows *rows;
    int32_t ahead; /* decisions that are asked for, 1 to MOST_AHEAD */
    int32_t fault;
};

/* What the task pushes: indexes of workers, in the order of use; count of them, 0 where no
 * worker is usable. */
struct schedule {
    int32_t count;
    uint16_t decisions[];
};

long schedule_task(void *store, void *args);

/* ---- the watchdog; inspect.c ---- */

struct watch_args {
    const struct lock_table *table;
    int64_t now_ms;
    int64_t limit_ms;
    int32_t fault;
    int32_t reserved;
};

#define SITE_SIZE 256

/* A hold beyond the limit: what the diagnosis pushes for each. */
struct long_hold {
    int32_t tid;
    int32_t waiters; /* threads that wait for this lock */
    uint64_t lock;
    int64_t held_ms;
    char site[SITE_SIZE]; /* where it was taken: function and library */
};

void *watch_init(void);
/* Gives the number of holds beyond the limit that are due to be reported. */
long watch_task(void *store, void *args);
/* Pushes those of them that are still there. */
long diagnose_task(void *store, void *args);

#endif
