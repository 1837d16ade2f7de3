/* orbit_rdb: Redis' background save in an orbit, in place of a fork. The parts and what they share.
 *
 * arena.c      the heap of Redis in regions that can be areas; its threads use it too
 * areas.c      those regions, and the data of the program, as areas
 * save.c       the call: begun where Redis would fork, ended where it would wait for the child
 * again.c      a save that the orbit failed in, made again by a fork
 * interpose.c  fork, waitpid, kill, pipe2, pthread_create, as Redis calls them
 * module.c     set-up, the command ORBIT.RDB; what Redis says of its modules and replicas
 *
 * Nothing of Redis' private structures is known here: only exported functions are called (rdbSave,
 * rdbPopulateSaveInfo), and what is needed beyond them is learnt from the system calls that Redis
 * makes.
 */
#ifndef ORBIT_RDB_H
#define ORBIT_RDB_H

#include <orbit.h>
#include <orbit_jemalloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fault.h"

/* ---- arena.c ---- */

/* The regions so far; they only become more. Any thread. */
size_t arena_regions(const struct orbit_jemalloc_region **regions);
/* Whether Redis' allocations come from there: false without jemalloc, or without LD_PRELOAD. */
bool arena_is_used(void);
/* This thread's allocations come from jemalloc's first arena from now on (true), or from ours.
 * Flushes its cache, in which freed memory of other arenas may be. */
void arena_leave(bool leave);

/* ---- areas.c ---- */

/* Makes the program's data an area, and what regions there are. False, with a sentence in
 * orbit_last_error(). */
bool areas_init(void);
/* The areas of a call, with regions that are new. NULL: one could not be made. */
struct orbit_area *const *areas_now(size_t *count);
/* Bytes of all areas. */
uint64_t areas_size(void);
/* Whether this address is in the program (redis-server), its object `server`, or is a return
 * address in its function `rdbSaveBackground`. */
bool is_in_program(const void *address);
bool is_in_server(const void *address);
bool is_in_background_save(const void *address);

/* ---- save.c ---- */

/* A port's fault: abort(). */
#define FAULT_ABORT FAULT_OF_PORT

struct save_counters {
    uint64_t saves;      /* begun in the orbit */
    uint64_t failed;     /* of these */
    uint64_t again;      /* of these: made again by a fork, without Redis' notice */
    uint64_t killed;     /* by Redis itself, as FLUSHALL does: no failure */
    uint64_t forks;      /* by Redis' own way, since the orbit could not take it */
    uint64_t call_us;    /* of the last one: how long Redis was blocked */
    uint64_t areas;      /* of the last one */
    uint64_t pages;      /* sent at the last one */
    uint64_t syncs;      /* calls that send pages ahead */
    uint64_t sync_us;    /* of all of them: CPU time of Redis' thread */
};
extern struct save_counters save_counters;
extern char save_last_failure[1200];

/* What a save may use, and whether pages are sent ahead. */
struct save_settings {
    unsigned memory_mb;  /* of the orbit's own; 0: no limit */
    bool is_memory_given; /* else as much as Redis' heap may be used beside memory_mb */
    unsigned deadline_s; /* 0: none */
    bool syncs;
};
extern struct save_settings save_settings;

/* Sets up the orbit. False, with a sentence in orbit_last_error(). */
bool save_init(void);
/* Sends some of what was written since the last save, so that the next save has less to send. To
 * be called often: it does nothing until it is due again. */
void save_sync_ahead(void);
/* The file that the next saves write, as Redis' dbfilename says. */
void save_set_file(const char *name);
/* The next save does this harm. */
void save_set_fault(int32_t fault);
/* The descriptors at this address are those by which a child would report to Redis: the task
 * must not write to them. */
void save_note_pipe(int *descriptors);
/* Begins a save on the data as it is now. The pid of the orbit, as that of a child; -1: fork
 * instead. */
pid_t save_begin(void);
bool save_is_pending(void);
/* If it has ended: true, with the pid it was begun with and a status as waitpid gives. Logs a
 * failure. */
bool save_ended(pid_t *pid, int *status);
/* A child of Redis' main thread that another wait has reaped, with its status: the pid that Redis
 * knows it by. */
pid_t save_known_as(pid_t reaped, int status);
/* Redis sends a signal to the process of this pid: the one that it is meant for. */
pid_t save_meant_by(pid_t pid);
/* Logs the call stack of the last crash once its functions are named. To be called often. */
void save_note_names(void);
int save_orbit_pid(void);

/* ---- again.c ---- */

/* False: Redis' functions for its children are not where they are in 7.0. */
bool again_init(void);
/* Forks a child that calls save, after the process `failed` has failed in it. False: it could not
 * fork. */
bool again_begin(pid_t failed, int (*save)(const void *what), const void *what);
/* The pid of that child; 0: there is none. */
pid_t again_child(void);
/* Whether it has ended, and its status. */
bool again_ended(int *status);
/* It was reaped with this status. */
void again_forget(int status);

/* ---- module.c ---- */

/* Whether no other module is loaded; false where Redis does not say. After the set-up. */
bool module_is_alone(void);
/* Whether a replica waits for a file; true where Redis does not say. Main thread. */
bool module_has_waiting_replica(void);

/* Writes to Redis' log. */
void module_log(const char *level, const char *text);

#endif
