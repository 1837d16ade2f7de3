/* orbit_deadlock: the parts of the plugin and what they share. Plain C on MariaDB's plugin
 * interface.
 *
 * plugin.c    declaration, variables, the thread's life
 * waits.c     which threads wait, as the server reports it; sleeps until a deadlock is possible
 * scan.c      what waits for what, by the SQL service; the end of a victim's wait
 * clock.c     has InnoDB renew what it shows
 * victims.c   what the victim's own thread does: error 1213 and the mark for its rollback
 * calls.c     the orbit and its calls
 * search.c    the task
 * ../../common has faults for tests
 */
#ifndef ORBIT_MARIADB_PLUGIN_H
#define ORBIT_MARIADB_PLUGIN_H

#include <stdbool.h>
#include <stdint.h>

#include "graph.h"

/* ---- plugin.c ---- */

extern unsigned int setting_interval; /* between two scans at least, milliseconds */
extern unsigned int setting_deadline; /* of a call, milliseconds */
extern unsigned int setting_memory;   /* of the orbit, megabytes */

/* Shown as status variables. */
struct plugin_counters {
    long long orbit_pid;
    unsigned long long scans;   /* of the lock waits; none while nobody waits */
    unsigned long long calls;   /* of the task */
    unsigned long long failed;  /* of these */
    unsigned long long broken;  /* deadlocks */
    unsigned long long refuted; /* cycles handed back that are none */
    unsigned long long call_us; /* of the last call */
    unsigned long long snapshot_bytes;
};
extern struct plugin_counters counters;

/* To the server's error log. */
void log_event(bool is_error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The fault of the next call, once. */
int32_t take_fault(void);
/* The call did not come to its fault: the next one gets it. */
void return_fault(int32_t fault);

/* ---- waits.c ---- */

struct waiting_thread {
    unsigned long thread;
    unsigned long long query; /* that it runs */
    uint64_t begun;           /* number of this wait: later ones have larger numbers */
    bool is_replica;          /* it applies what a primary has sent: a kill would stop replication */
};

/* Has the server report its waits here. */
void waits_start(void);
/* No longer. Takes 0.1 s. */
void waits_stop(void);
/* Sleeps until this time, then until two threads wait, one of which began after `seen`, which is
 * set. False: nothing like that yet, or it was woken. */
bool waits_await(uint64_t due_us, uint64_t *seen);
/* Ends waits_await; for good, if asked. Any thread. */
void waits_wake(bool stop);
bool waits_are_stopped(void);
/* The threads that wait, to be freed; NULL: no memory. */
size_t waits_list(struct waiting_thread **list);
/* Monotonic. */
uint64_t now_us(void);

/* ---- clock.c ---- */

/* False: the server's clock is not where it is known to be. */
bool clock_start(void);
void clock_stop(void);
/* From here on what this thread reads of InnoDB's transactions is renewed, or is as usual. */
void clock_set_ahead(bool is_ahead);

/* ---- scan.c ---- */

/* The waits of one point in time. */
struct scan {
    struct graph *graph; /* packed; NULL: nobody waits for a transaction that waits */
    size_t size;
    struct session {
        unsigned long thread;  /* of the transaction; 0: none */
        unsigned long long query; /* that its thread runs; 0: none */
    } *sessions;               /* by index of transaction */
    uint64_t signature;        /* equal for scans with the same waits */
};

/* Connects to the server. False: it does not take connections yet. */
bool scan_connect(void);
void scan_disconnect(void);
/* Has InnoDB's own detection off. False: InnoDB is not there yet. */
bool scan_take_over(void);
/* Has it again as it was. */
void scan_hand_back(void);
/* Reads the waiting transactions. False: it could not be read, which is logged. */
bool scan_waits(struct scan *scan);
void scan_free(struct scan *scan);
/* Ends the wait of this transaction, if its thread still runs the same statement. */
bool scan_end_wait(const struct scan *scan, int32_t victim);

/* ---- victims.c ---- */

struct st_mysql_audit;
extern struct st_mysql_audit victims_audit;
/* This thread's statement is about to be interrupted since it is a deadlock's victim. False: too
 * many at a time. */
bool victims_add(unsigned long thread);
/* The kill was accepted, or there is none. */
void victims_settle(unsigned long thread, bool is_ordered);

/* ---- calls.c ---- */

/* Makes the orbit. False, having said why. */
bool calls_start(void);
void calls_stop(void);
/* Has the task search, and found take each proven cycle. False: the call failed, which is
 * logged. */
bool calls_search(const struct scan *scan, void (*found)(const struct scan *scan, const struct cycle *cycle));
/* Ends a running call. Any thread. */
void calls_interrupt(void);
void calls_note_pid(void);

#endif
