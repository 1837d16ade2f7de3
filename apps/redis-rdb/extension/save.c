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
/* More than its rdbSaveInfo has. */
#define SAVE_INFO_SIZE 512

struct save_args {
    int *pipe; /* in the program's data: numbers of descriptors that are others here; NULL: not known */
    int32_t fault;
    int32_t reserved;
    char directory[PATH_MAX];
    char file[NAME_MAX + 1];
};

static struct orbit *orbit;
static struct orbit_future *future;
static pid_t pending_pid;
static int *report_pipe;
static char file_name[NAME_MAX + 1];
static int32_t next_fault;
/* Saves in a row whose task was ended by a failure. After so many Redis forks, and then the
 * orbit has another try. */
static unsigned failures;
#define MOST_FAILURES 2

/* ---- the task ---- */

/* In the orbit. What it writes to Redis' data is its own, and gone with the call. */
static long save_task(void *store, void *raw)
{
    struct save_args *args = raw;
    uint64_t info[SAVE_INFO_SIZE / sizeof(uint64_t)] = {0};
    (void)store;
    do_fault(args->fault);
    if (args->fault == FAULT_ABORT)
        abort();
    if (args->pipe)
        args->pipe[0] = args->pipe[1] = -1;
    if (chdir(args->directory) != 0)
        return errno;
    return rdb_save(0, args->file, rdb_populate_save_info(info)) == 0 ? 0 : EIO;
}

/* ---- in Redis ---- */

bool save_init(void)
{
    struct task_process task;
    task_describe(&task, "redis-rdb", save_task, (uint64_t)save_settings.memory_mb << 20);
    task.options.deadline_us = (uint64_t)save_settings.deadline_s * 1000000;
    *(void **)&rdb_save = dlsym(RTLD_DEFAULT, "rdbSave");
    *(void **)&rdb_populate_save_info = dlsym(RTLD_DEFAULT, "rdbPopulateSaveInfo");
    /* Redis does not wait for an orbit that is down: it forks. */
    task.options.down_wait_us = 1000;
    return rdb_save && rdb_populate_save_info && orbit_init() == 0 &&
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
    return future != NULL;
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

pid_t save_begin(void)
{
    struct save_args args = {0};
    struct orbit_area *const *areas;
    uint64_t began = now_us(), pages;
    size_t count;
    pid_t pid = save_orbit_pid();
    args.fault = next_fault;
    args.pipe = report_pipe;
    snprintf(args.file, sizeof args.file, "%s", file_name);
    if (!orbit || future)
        return -1;
    if (pid == 0)
        return fork_instead("the orbit is being started again");
    if (!getcwd(args.directory, sizeof args.directory))
        return fork_instead("the working directory has no name");
    if (failures >= MOST_FAILURES) {
        failures--;
        return fork_instead("the orbit failed in two saves in a row");
    }
    areas = areas_now(&count);
    if (!areas)
        return fork_instead(orbit_last_error());
    /* It does nothing, and has ended but for the moment after it was made. */
    sync_has_ended(2000);
    pages = pages_sent();
    future = orbit_call_async(orbit, 0, count, areas, NULL, &args, sizeof args);
    if (!future)
        return fork_instead(orbit_last_error());
    next_fault = FAULT_NONE;
    pending_pid = pid;
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

bool save_ended(pid_t *pid, int *status)
{
    struct orbit_outcome outcome;
    int error = orbit_future_poll(future, &outcome);
    if (error == -EINPROGRESS)
        return false;
    orbit_future_free(future);
    future = NULL;
    *pid = pending_pid;
    *status = status_of(error, &outcome);
    failures = error < 0 ? failures + 1 : 0;
    if (error < 0) {
        save_counters.failed++;
        snprintf(save_last_failure, sizeof save_last_failure, "%s", outcome.text);
        module_log("warning", save_last_failure);
    } else if (outcome.value != 0) {
        save_counters.failed++;
        snprintf(save_last_failure, sizeof save_last_failure, "rdbSave: %s", strerror((int)outcome.value));
    } else {
        ahead.synced = save_counters.areas;
        ahead.pid = pending_pid;
    }
    /* What the supervisor's thread has allocated (the text of a crash) and this one has freed is
     * in this thread's cache, and lies outside of the regions: Redis must not get it for its
     * data. */
    arena_leave(false);
    return true;
}
