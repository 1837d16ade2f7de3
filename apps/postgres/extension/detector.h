/* orbit_deadlock: the parts of the extension and what they share. PostgreSQL's headers come first,
 * as always.
 *
 * module.c      settings, registration of the worker
 * status.c      the shared state, its view, orders for faults
 * lock_table.c  the lock table: packed waits out, proofs and victims in
 * detector.c    the calls: by an orbit, by a fork for each call, or in the worker
 * worker.c      the background worker's loop
 * postpone.c    puts the server's own detector off while the worker answers
 * task.c        the task (no PostgreSQL)       ../../common has faults for tests
 */
#ifndef ORBIT_DEADLOCK_DETECTOR_H
#define ORBIT_DEADLOCK_DETECTOR_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "lib/stringinfo.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/spin.h"

#include "waits.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 160000
#error "orbit_deadlock reads the lock table of PostgreSQL 15: build it with the headers of that version (PG_CONFIG=...)"
#endif

/* ---- settings: module.c ---- */

/* Where the task runs. FORK and INSIDE are for comparison. */
enum run_in { RUN_IN_ORBIT, RUN_IN_FORK, RUN_IN_WORKER };

extern int setting_interval;       /* between two scans, milliseconds */
extern int setting_deadline;       /* of a call, milliseconds */
extern int setting_memory;         /* of the orbit, megabytes */
extern int setting_victim_window;  /* milliseconds */
extern int setting_server_timeout; /* of a wait, until the server's own detector runs, seconds; -1: never put off */
extern int setting_run_in;         /* enum run_in */
extern bool setting_wait_for_call; /* whether the worker blocks in a call */
extern bool setting_faults;

/* ---- shared state: status.c ---- */

#define EVENT_SIZE 1024
#define REPORT_SIZE 1024
#define REPORT_COUNT 16

/* What a victim's client learns of its deadlock; see lock_table.c. */
struct victim_report {
    int pid; /* 0: unused */
    char text[REPORT_SIZE];
};

/* In shared memory. Written by the worker; read by the view; orders are written by
 * orbit_deadlock_fault. All under mutex, which is held for copies only. */
struct detector_state {
    slock_t mutex;
    int worker_pid;
    int orbit_pid;
    Latch *worker_latch;
    pg_atomic_uint64 answered_at; /* when the worker last knew of all waits; 0: it is not there. Without mutex. */
    int64 scans;           /* of the lock table */
    int64 calls;           /* of the task */
    int64 failed_calls;    /* that ended otherwise than by returning */
    int64 crashes;         /* of the task, since the server started */
    int64 deadlocks;       /* broken */
    int64 refuted;         /* cycles handed back that the lock table no longer had, or never had */
    int64 call_us;         /* of the last call, until its result was there */
    int64 snapshot_bytes;  /* of the last call */
    TimestampTz last_scan;
    TimestampTz last_call;
    TimestampTz last_deadlock;
    TimestampTz last_event_at;
    char last_event[EVENT_SIZE];
    int32 fault;           /* enum detector_fault: for the next calls */
    int32 fault_calls;     /* how many */
    int32 faults_done;     /* calls with a fault that have ended */
    int next_report;
    struct victim_report reports[REPORT_COUNT];
};

extern struct detector_state *detector_state; /* NULL: the library was not preloaded */

void status_request_memory(void);
void status_attach_memory(void);
/* Records an event for the view: the first line of a message. */
void status_event(const char *text);

/* ---- the lock table: lock_table.c ---- */

/* The waits of one point in time, in the worker's own memory, with what it needs beside what the
 * task sees. */
struct lock_scan {
    struct waits *waits; /* packed */
    size_t size;
    struct waiter {
        int procno; /* index in ProcGlobal->allProcs */
        int pid;
        LOCKTAG tag;
        LOCKMODE mode;
        uint64 since; /* PGPROC.waitStart */
    } *waiters;       /* by index in the queue of waits */
    uint64 signature; /* equal for scans with the same waits */
};

/* Whether any process waits for a lock just now; takes no lock. */
bool lock_table_has_waits(void);
/* Scans the lock table, with all its partitions share-locked meanwhile. In the current memory
 * context. */
struct lock_scan *lock_table_scan(void);
/* What became of a cycle. LEFT: it exists, but by the order of a queue; the server's own detector
 * changes that order, at no victim. */
enum break_end { BREAK_DONE, BREAK_REFUTED, BREAK_LEFT };
/* Proves the cycle against the lock table as it is now, and fails the victim's wait: it raises
 * "deadlock detected". */
enum break_end lock_table_break(const struct lock_scan *scan, const struct found_cycle *cycle, size_t size);
/* The hook that completes a victim's message; in every backend. */
void lock_table_install_report_hook(void);

/* ---- calls: detector.c ---- */

/* How a call ended. */
enum call_end { CALL_PENDING, CALL_RETURNED, CALL_FAILED, CALL_NOT_MADE };

void detector_start(void);
void detector_stop(void);
/* Applies changed settings. */
void detector_reload(void);
/* Begins a call on this scan; one at a time. found is called with each cycle before the call has
 * ended. */
enum call_end detector_call(struct lock_scan *scan, int32_t fault,
                            void (*found)(struct lock_scan *scan, const struct found_cycle *cycle, size_t size));
/* Goes on with a pending call. */
enum call_end detector_poll(void);
/* Readable when a pending call may have ended; -1: no descriptor. */
int detector_fd(void);
int detector_orbit_pid(void);
/* To be called about once a second: reaps what the worker has adopted. */
void detector_reap_orphans(void);

/* ---- the server's own detector: postpone.c ---- */

/* To be called once, before sessions start. */
void postpone_server_detector(void);

/* ---- the worker: worker.c ---- */

PGDLLEXPORT void orbit_deadlock_worker(Datum argument);

#endif
