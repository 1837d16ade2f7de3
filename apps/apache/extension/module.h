/* mod_orbit: the parts of the module for Apache 2.4 and what they share.
 *
 * module.c    settings, hooks, set-up of a child
 * balancer.c  the lbmethod "orbit": decisions from a schedule that the task makes ahead
 * watchdog.c  the thread that calls the watchdog's task and logs what it finds
 * status.c    the status page, and orders for faults
 * schedule.c, inspect.c  the tasks      ../../common has faults for tests
 * preload.c   orbit_apr.so, a library of its own
 *
 * Everything here is of one child (a server process with threads): each has orbits of its own.
 */
#ifndef ORBIT_APACHE_MODULE_H
#define ORBIT_APACHE_MODULE_H

#include "httpd.h"
#include "http_config.h"
#include "http_log.h"
#include "ap_provider.h"

#include <orbit.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "tasks.h"

extern __attribute__((visibility("default"))) module orbit_module;
#ifndef ORBIT_DECLARES_MODULE
APLOG_USE_MODULE(orbit);
#endif

/* Settings, of the whole server. */
struct settings {
    int deadline_ms;   /* of a call */
    int memory_mb;     /* of an orbit */
    int ahead;         /* decisions of a call of the balancer */
    int lock_limit_ms; /* a lock held longer is reported; 0: no watchdog */
    bool faults;       /* whether the status page takes orders for faults */
    bool wait;         /* the balancer waits for a call with each request: for comparison */
};
extern struct settings settings;

/* Calls of one task, for the status page. */
struct task_state {
    struct orbit *orbit; /* NULL: not used in this child */
    const char *name;
    atomic_uint_least64_t calls, failed;
    atomic_int next_fault; /* enum task_fault: of the next call */
};
extern struct task_state balancer_task, watchdog_task;

/* Makes the orbit of a task. False, with a line in the server's log. */
bool task_start(struct task_state *task, const char *name, orbit_entry entry, void *(*init)(void));
/* Logs how a call failed: the sentence, for a crash with signal, file and line; then the call
 * stack. Counts it. */
void task_failed(struct task_state *task, const struct orbit_outcome *outcome);

/* ---- balancer.c ---- */
void balancer_register(apr_pool_t *pool);
void balancer_child_init(apr_pool_t *pool, server_rec *server);
struct balancer_counters {
    atomic_uint_least64_t ahead;    /* requests decided by a schedule */
    atomic_uint_least64_t repeated; /* by an earlier schedule once more, since the next one is late */
    atomic_uint_least64_t rotated;  /* in turn, since there is no schedule */
    atomic_uint_least64_t refuted;  /* schedules that made no sense */
};
extern struct balancer_counters balancer_counters;

/* ---- watchdog.c ---- */
void watchdog_child_init(apr_pool_t *pool, server_rec *server);
extern atomic_uint_least64_t watchdog_reports;

/* ---- status.c ---- */
int status_handler(request_rec *r);

#endif
