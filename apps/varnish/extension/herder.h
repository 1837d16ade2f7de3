/* orbit_herder: Varnish' pool herder in an orbit. What the files of the library share.
 *
 * The herder of a thread pool makes worker threads when requests wait, and ends those that have
 * been idle too long. The task is Varnish' own pool_herder(), as Debian built it, run on a replica
 * of the pool. In the worker process a thread in the herder's place does what it decides.
 */
#ifndef ORBIT_HERDER_H
#define ORBIT_HERDER_H

#include "fault.h"
#include <orbit.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "cache/cache.h"
#include "common/common_param.h"

/* ---- What is private to Varnish 7.1.1, by offset. check_layout() proves it before the first
 * use. ---- */

#define POOL_MAGIC 0x606658fau
#define POOL_SIZE 0x100
#define POOL_INFO_MAGIC 0x4e4442d3u
enum pool_offset {
    POOL_STATS = 0x20,      /* unused here; two pointers before die */
    POOL_DIE = 0x28,        /* int */
    POOL_COND = 0x30,       /* pthread_cond_t: the herder waits for it */
    POOL_MUTEX = 0x68,      /* struct lock */
    POOL_NIDLE = 0x70,      /* unsigned, under the mutex */
    POOL_IDLE_QUEUE = 0x78, /* VTAILQ of pool_task, under the mutex */
    POOL_NTHR = 0xd8,       /* unsigned, the herder's */
    POOL_LQUEUE = 0xdc,     /* unsigned, under the mutex */
    POOL_SDROPPED = 0xe0,   /* uint64_t each, under the mutex */
    POOL_RDROPPED = 0xe8,
    POOL_SQUEUED = 0xf0
};
#define POOL_FIELD(pool, type, offset) (*(type *)((char *)(pool) + (offset)))

/* Counters of VSC_C_main, uint64_t each, under pool_mtx. */
enum counter_offset {
    COUNT_THREADS = 0x140,
    COUNT_LIMITED = 0x148,
    COUNT_CREATED = 0x150,
    COUNT_DESTROYED = 0x158,
    COUNT_FAILED = 0x160,
    COUNT_QUEUED = 0x188,
    COUNT_SESS_DROPPED = 0x190,
    COUNT_REQ_DROPPED = 0x198
};
#define COUNTERS_SIZE 0x1000
#define COUNTER(base, offset) (*(uint64_t *)((char *)(base) + (offset)))

struct pool_info {
    unsigned magic;
    size_t stacksize;
    void *pool;
};

VTAILQ_HEAD(task_queue, pool_task);

/* Exported by varnishd, and not by the VCL compiler and others that are run with the library
 * too. */
#define OF_VARNISHD __attribute__((weak))
extern void *pool_herder(void *) OF_VARNISHD;
extern struct lock pool_mtx OF_VARNISHD;
extern void *VSC_C_main OF_VARNISHD;
extern volatile struct params *cache_param OF_VARNISHD;
extern void Lck__Lock(struct lock *, const char *, int) OF_VARNISHD;
extern void Lck__Unlock(struct lock *, const char *, int) OF_VARNISHD;
extern __typeof__(Lck__New) Lck__New OF_VARNISHD;
extern __typeof__(VSL) VSL OF_VARNISHD;
extern int Lck_CondWaitTimeout(pthread_cond_t *, struct lock *, double) OF_VARNISHD;
extern __typeof__(VAS_Fail_Func) VAS_Fail_Func OF_VARNISHD;
extern void THR_Init(void) OF_VARNISHD;
extern void THR_SetName(const char *) OF_VARNISHD;

/* ---- a step of the herder: a call ---- */

/* What a step hands to the one after it. */
enum resume { RESUME_FRESH = 0, RESUME_BRED, RESUME_WAITED };

/* Written by main. */
struct herder_view {
    uint64_t pool_id; /* the pool's address in main */
    double last_used; /* of the worker that has been idle longest */
    uint32_t has_idle;
    int32_t waited; /* what the wait returned */
    uint32_t resume;
    uint32_t fault;
    char pool[POOL_SIZE];
    struct params params;
};

enum herder_does { DOES_NOTHING = 0, DOES_BREED, DOES_WAIT, DOES_SLEEP, DOES_END };

/* Written by the task, and checked by main. */
struct herder_step {
    uint32_t does;
    uint32_t kisses;    /* ends the worker that has been idle longest */
    uint32_t sums_up;   /* adds the pool's counters to those of all */
    uint32_t is_limited; /* counts that more threads are needed than may be */
    double delay;       /* seconds */
};

/* What Debian's herder does to make a thread and to end one: learnt once. */
struct herder_ways {
    void *(*thread)(void *);
    task_func_t *kiss;
};

/* task.c */
void *herder_init(void);
long herder_task(void *store, void *args);
long herder_learn(void *store, void *args);
extern int is_herder_in_orbit;
int orbit_pthread_create(pthread_t *thread, void *(*start)(void *), void *argument);
int orbit_timed_wait(const struct timespec *until);
int orbit_sleep(const struct timespec *time);

/* main.c */
void *herder_in_main(void *pool);

/* interpose.c */
int real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);

#endif
