/* orbit_deadlock: the parts of the plugin and what they share. Plain C on MariaDB's plugin
 * interface.
 *
 * plugin.c    declaration, variables, the thread's life scan.c      what waits for what, by the SQL
 * service; the end of a victim's wait victims.c   what the victim's own thread does: error 1213 and
 * rollback calls.c     the orbit and its calls search.c    the task      ../../common has faults for tests
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
/* Reads who waits. False: it could not be read, which is logged. */
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
/* It was not. */
void victims_remove(unsigned long thread);

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
