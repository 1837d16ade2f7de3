/* A save: begun where Redis would fork, ended where it would wait for the child. The task runs
 * Redis' own rdbSave on the snapshot.
 *
 * All but the task runs in Redis' main thread.
 */
#define _GNU_SOURCE
#include "rdb.h"
#include "task.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct save_counters save_counters;
struct save_settings save_settings = {.memory_mb = 512, .deadline_s = 3600, .syncs = true};
char save_last_failure[1200] = "none";

/* Redis 7.0's; module.c checks the version. */
static int (*rdb_save)(int requirements, char *file, void *info);
static void *(*rdb_populate_save_info)(void *info);
static unsigned long long (*count_all_keys)(void);
static unsigned long (*count_libraries)(void);
/* More than its rdbSaveInfo has. */
#define SAVE_INFO_SIZE 512

struct save_args {
    int *pipe; /* in the program's data: numbers of descriptors that are others here; NULL: not known */
    int32_t fault;
    int32_t reserved;
    uint64_t keys, libraries; /* that Redis has at the call: the snapshot must have as many */
    char directory[PATH_MAX];
    char file[NAME_MAX + 1];
};

static struct orbit *orbit;
static struct orbit_future *future;
/* Of the save that is pending. */
static pid_t pending_pid;
static struct save_args pending_args;
static bool is_killed; /* by Redis */
/* The last crash, until its functions are named, or it is this time. */
static struct orbit_future *crashed;
static uint64_t names_until_us;
#define NAMES_US 15000000
static uint64_t limit_for; /* size of the areas that the orbit's limit of memory was set for */
static int *report_pipe;
static char file_name[NAME_MAX + 1];
static int32_t next_fault;
/* Saves in a row whose task was ended by a failure. After so many Redis forks, and then the
 * orbit has another try. */
static unsigned failures;
#define MOST_FAILURES 2

/* ---- the task ---- */

/* The task's result where the snapshot is not what Redis has. */
#define SNAPSHOT_DIFFERS (-1)

/* In the directory of the call. 0, or an errno. */
static int write_file(const struct save_args *args)
{
    uint64_t info[SAVE_INFO_SIZE / sizeof(uint64_t)] = {0};
    if (chdir(args->directory) != 0)
        return errno;
    errno = 0;
    if (rdb_save(0, (char *)args->file, rdb_populate_save_info(info)) == 0)
        return 0;
    return errno ? errno : EIO;
}

/* In the orbit. What it writes to Redis' data is its own, and gone with the call. */
static long save_task(void *store, void *raw)
{
    struct save_args *args = raw;
    int error;
    (void)store;
    do_fault(args->fault);
    if (args->fault == FAULT_ABORT)
        abort();
    if (args->pipe)
        args->pipe[0] = args->pipe[1] = -1;
    if (count_all_keys() + (args->fault == FAULT_LIE) != args->keys || count_libraries() != args->libraries)
        return SNAPSHOT_DIFFERS;
    error = write_file(args);
    /* An orbit without work keeps no file system busy. */
    return chdir("/") != 0 && error == 0 ? errno : error;
}

/* In a child of Redis. */
static int save_in_child(const void *args)
{
    return write_file(args);
}

/* ---- in Redis ---- */

bool save_init(void)
{
    struct task_process task;
    task_describe(&task, "redis-rdb", save_task, (uint64_t)save_settings.memory_mb << 20);
    task.options.deadline_us = (uint64_t)save_settings.deadline_s * 1000000;
    *(void **)&rdb_save = dlsym(RTLD_DEFAULT, "rdbSave");
    *(void **)&rdb_populate_save_info = dlsym(RTLD_DEFAULT, "rdbPopulateSaveInfo");
    *(void **)&count_all_keys = dlsym(RTLD_DEFAULT, "dbTotalServerKeyCount");
    *(void **)&count_libraries = dlsym(RTLD_DEFAULT, "functionsLibNum");
    /* Redis does not wait for an orbit that is down: it forks. */
    task.options.down_wait_us = 1000;
    return rdb_save && rdb_populate_save_info && count_all_keys && count_libraries && orbit_init() == 0 &&
           (orbit = orbit_create_with(&task.options)) != NULL;
}

void save_set_file(const char *name)
{
    snprintf(file_name, sizeof file_name, "%s", name);
}

void save_set_fault(int32_t fault)
{
    next_fault = fault;
}

void save_note_pipe(int *descriptors)
{
    report_pipe = descriptors;
}

int save_orbit_pid(void)
{
    struct orbit_counters counters;
    return orbit && orbit_stats(orbit, &counters) == 0 ? counters.pid : 0;
}

bool save_is_pending(void)
{
    return future != NULL || again_child() != 0;
}

static uint64_t microseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static uint64_t now_us(void)
{
    return microseconds(CLOCK_MONOTONIC);
}

/* CPU time of this thread: on a loaded machine a call may take any time, and costs no more. */
static uint64_t cpu_us(void)
{
    return microseconds(CLOCK_THREAD_CPUTIME_ID);
}

static pid_t fork_instead(const char *why)
{
    char text[1400];
    save_counters.forks++;
    snprintf(text, sizeof text, "this save is forked as without the module: %s", why);
    module_log("warning", text);
    return -1;
}

/* ---- pages sent ahead ---- */

/* Areas of a call at most, and how much of Redis' CPU time it may take before the next ones name
 * fewer, microseconds. */
#define MOST_SYNCED 8
#define SYNC_US 500
/* Share of the time that these calls may take: one part of so many. With half the share the
 * areas' turn comes half as often, and twice as many pages are left for a save. */
#define SYNC_SHARE 25
/* Of an area that is written all over, and so takes longer than this each time: a pause, which
 * doubles. */
#define HOT_US 2000
#define FIRST_PAUSE_US 1000000
#define LONGEST_PAUSE_US 60000000
/* After a call that had nothing to send. */
#define IDLE_PAUSE_US 400000

static struct orbit_future *sync_future;
static struct {
    size_t synced;   /* areas that the last good save has sent whole: the orbit has them */
    int pid;         /* of the orbit that has them */
    size_t next;     /* area */
    size_t width;    /* areas of the next call */
    uint64_t due_us;
    uint64_t pause_us;
} ahead = {.width = 1};

static long sync_task(void *store, void *args)
{
    (void)store, (void)args;
    return 0;
}

static uint64_t pages_sent(void)
{
    struct orbit_counters counters = {0};
    orbit_stats(orbit, &counters);
    return counters.pages;
}

/* Chooses how many areas the next call names, and when, by the CPU time that this one took. */
static void plan_next_sync(uint64_t now, uint64_t took, uint64_t pages)
{
    uint64_t pause = took * SYNC_SHARE;
    if (took > HOT_US && ahead.width == 1) {
        ahead.pause_us = ahead.pause_us ? ahead.pause_us * 2 : FIRST_PAUSE_US;
        if (ahead.pause_us > LONGEST_PAUSE_US)
            ahead.pause_us = LONGEST_PAUSE_US;
        pause = ahead.pause_us;
    } else if (took < SYNC_US) {
        ahead.pause_us = 0;
    }
    if (pages == 0 && pause < IDLE_PAUSE_US)
        pause = IDLE_PAUSE_US;
    if (took > SYNC_US)
        ahead.width = ahead.width > 1 ? ahead.width / 2 : 1;
    else if (took < SYNC_US / 2 && ahead.width < MOST_SYNCED)
        ahead.width++;
    ahead.due_us = now + pause;
}

/* Whether the last such call has ended. */
static bool sync_has_ended(uint64_t wait_us)
{
    int error = sync_future ? orbit_future_wait_timeout(sync_future, wait_us, NULL) : 0;
    if (error == -ETIMEDOUT)
        return false;
    orbit_future_free(sync_future);
    sync_future = NULL;
    if (error != 0)
        arena_leave(false);
    return true;
}

void save_sync_ahead(void)
{
    struct orbit_area *const *areas, *some[MOST_SYNCED];
    uint64_t began, took, before;
    size_t count, n;
    if (!save_settings.syncs || future || now_us() < ahead.due_us || ahead.synced == 0 || save_orbit_pid() != ahead.pid)
        return;
    began = cpu_us();
    if (!sync_has_ended(0) || !(areas = areas_now(&count)))
        return;
    n = ahead.width < ahead.synced ? ahead.width : ahead.synced;
    for (size_t i = 0; i < n; i++)
        some[i] = areas[(ahead.next + i) % ahead.synced];
    ahead.next = (ahead.next + n) % ahead.synced;
    before = pages_sent();
    sync_future = orbit_call_async(orbit, 0, n, some, sync_task, NULL, 0);
    if (!sync_future)
        return;
    save_counters.syncs++;
    took = cpu_us() - began;
    save_counters.sync_us += took;
    plan_next_sync(now_us(), took, pages_sent() - before);
}

/* ---- begin and end of a save ---- */

/* A save needs a buffer for its largest value, compressed: at most as much as Redis has in all. */
static bool set_limit(void)
{
    uint64_t size = areas_size();
    struct orbit_limits limits = task_limits(((uint64_t)save_settings.memory_mb << 20) + size);
    if (save_settings.is_memory_given || size == limit_for)
        return true;
    if (orbit_set_limits(orbit, &limits) < 0)
        return false;
    limit_for = size;
    return true;
}

pid_t save_begin(void)
{
    struct save_args args = {0};
    struct orbit_area *const *areas;
    uint64_t began = now_us(), pages;
    size_t count;
    pid_t pid = save_orbit_pid();
    args.keys = count_all_keys();
    args.libraries = count_libraries();
    args.fault = next_fault;
    args.pipe = report_pipe;
    snprintf(args.file, sizeof args.file, "%s", file_name);
    if (!orbit || save_is_pending())
        return -1;
    /* What a module keeps in variables of its own is in no area. */
    if (!module_is_alone())
        return fork_instead("another module is loaded");
    if (pid == 0)
        return fork_instead("the orbit is being started again");
    if (!getcwd(args.directory, sizeof args.directory))
        return fork_instead("the working directory has no name");
    if (failures >= MOST_FAILURES) {
        failures--;
        return fork_instead("the orbit failed in two saves in a row");
    }
    areas = areas_now(&count);
    if (!areas || !set_limit())
        return fork_instead(orbit_last_error());
    /* It does nothing, and has ended but for the moment after it was made. */
    sync_has_ended(2000);
    pages = pages_sent();
    future = orbit_call_async(orbit, 0, count, areas, NULL, &args, sizeof args);
    if (!future)
        return fork_instead(orbit_last_error());
    next_fault = FAULT_NONE;
    pending_pid = pid;
    pending_args = args;
    is_killed = false;
    save_counters.saves++;
    save_counters.areas = count;
    save_counters.pages = pages_sent() - pages;
    save_counters.call_us = now_us() - began;
    arena_leave(false);
    return pid;
}

/* As waitpid gives it. */
static int status_of(int error, const struct orbit_outcome *outcome)
{
    if (error == 0)
        return (outcome->value & 0xff) << 8;
    if (outcome->kind == ORBIT_CRASHED || outcome->kind == ORBIT_KILLED)
        return outcome->signal;
    if (outcome->kind == ORBIT_EXITED)
        return (outcome->status ? outcome->status & 0xff : 1) << 8;
    return SIGKILL;
}

/* Notes a failure; why may have several lines. */
static void note_failure(const char *why)
{
    snprintf(save_last_failure, sizeof save_last_failure, "%s", why);
    module_log("warning", save_last_failure);
}

/* The status that Redis gets of a save that has failed in the orbit; -1: none yet, a child makes
 * the save again. */
static int recover(int failed)
{
    if (module_has_waiting_replica()) {
        /* What Redis takes for its own kill: the replica asks anew, and writes are not refused. */
        module_log("warning", "a replica waited for this save: it will ask again");
        return SIGUSR1;
    }
    if (!again_begin(pending_pid, save_in_child, &pending_args)) {
        module_log("warning", "it could not be made again: fork failed");
        return failed;
    }
    save_counters.again++;
    module_log("warning", "this save is made again by a fork");
    return -1;
}

/* Takes the end of the call. As recover. */
static int take_end(int error, const struct orbit_outcome *outcome)
{
    if (is_killed && error < 0) {
        save_counters.killed++;
        return SIGUSR1;
    }
    if (error == 0 && outcome->value == 0) {
        failures = 0;
        ahead.synced = save_counters.areas;
        ahead.pid = pending_pid;
        return 0;
    }
    save_counters.failed++;
    failures = error < 0 ? failures + 1 : 0;
    if (error == 0 && outcome->value == SNAPSHOT_DIFFERS)
        note_failure("the snapshot has not the keys that Redis has");
    else if (error == 0)
        note_failure(strerror((int)outcome->value));
    else
        note_failure(outcome->text);
    return recover(status_of(error, outcome));
}

/* What the supervisor's thread has allocated (the text of a crash) and this one has freed is in
 * this thread's cache, and lies outside of the regions: Redis must not get it for its data, which
 * the next save would not find. Follows whatever polls or frees a future. */
static void drop_cached(void)
{
    arena_leave(false);
}

static void free_future(void)
{
    orbit_future_free(future);
    future = NULL;
    drop_cached();
}

void save_note_names(void)
{
    struct orbit_outcome outcome;
    if (!crashed)
        return;
    orbit_future_poll(crashed, &outcome);
    bool is_named = strcmp(outcome.text, save_last_failure) != 0;
    if (is_named)
        note_failure(outcome.text);
    if (is_named || now_us() >= names_until_us) {
        orbit_future_free(crashed);
        crashed = NULL;
    }
    drop_cached();
}

/* Has what it crashed with named later: the functions are being found, and nobody waits. */
static void keep_crash(void)
{
    orbit_future_free(crashed);
    crashed = future;
    future = NULL;
    names_until_us = now_us() + NAMES_US;
    drop_cached();
}

bool save_ended(pid_t *pid, int *status)
{
    struct orbit_outcome outcome;
    int error;
    *pid = pending_pid;
    if (again_child())
        return again_ended(status);
    error = orbit_future_poll(future, &outcome);
    if (error == -EINPROGRESS)
        return false;
    *status = take_end(error, &outcome);
    if (error < 0 && outcome.kind == ORBIT_CRASHED)
        keep_crash();
    else
        free_future();
    return *status != -1;
}

pid_t save_known_as(pid_t reaped, int status)
{
    if (reaped != again_child())
        return reaped;
    again_forget(status);
    return pending_pid;
}

pid_t save_meant_by(pid_t pid)
{
    if (pid != pending_pid || !save_is_pending())
        return pid;
    if (again_child())
        return again_child();
    is_killed = true;
    return pid;
}
