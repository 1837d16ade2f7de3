/* A save: begun where Redis would fork, ended where it would wait for the child. The task runs Redis' own rdbSave on the
 * snapshot.
 *
 * All but the task runs in Redis' main thread.
 */
#define _GNU_SOURCE
#include "rdb.h"

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
static enum save_fault next_fault;

/* ---- the task ---- */

static volatile int sink;

static __attribute__((noinline)) int recurse_for_ever(int level)
{
    volatile char frame[512];
    frame[level & 511] = (char)level;
    if (sink == -1)
        return level;
    return recurse_for_ever(level + 1) + frame[level & 511];
}

static void write_to_null(void)
{
    volatile int *volatile nowhere = NULL;
    *nowhere = 1;
}

static void do_fault(int32_t fault)
{
    switch (fault) {
    case SAVE_NULL_WRITE:
        write_to_null();
        break;
    case SAVE_ENDLESS_LOOP:
        for (;;)
            sink++;
    case SAVE_RECURSION:
        sink = recurse_for_ever(0);
        break;
    case SAVE_ABORT:
        abort();
    default:
        break;
    }
}

/* In the orbit. What it writes to Redis' data is its own, and gone with the call. */
static long save_task(void *store, void *raw)
{
    struct save_args *args = raw;
    uint64_t info[SAVE_INFO_SIZE / sizeof(uint64_t)] = {0};
    (void)store;
    do_fault(args->fault);
    if (args->pipe)
        args->pipe[0] = args->pipe[1] = -1;
    if (chdir(args->directory) != 0)
        return errno;
    return rdb_save(0, args->file, rdb_populate_save_info(info)) == 0 ? 0 : EIO;
}

/* ---- in Redis ---- */

bool save_init(void)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    *(void **)&rdb_save = dlsym(RTLD_DEFAULT, "rdbSave");
    *(void **)&rdb_populate_save_info = dlsym(RTLD_DEFAULT, "rdbPopulateSaveInfo");
    options.name = "redis-rdb";
    options.entry = save_task;
    options.flags = ORBIT_DATA_ONLY;
    /* Redis does not wait for an orbit that is down: it forks. */
    options.down_wait_us = 1000;
    return rdb_save && rdb_populate_save_info && orbit_init() == 0 && (orbit = orbit_create_with(&options)) != NULL;
}

void save_set_file(const char *name)
{
    snprintf(file_name, sizeof file_name, "%s", name);
}

void save_set_fault(enum save_fault fault)
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

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static pid_t fork_instead(const char *why)
{
    char text[1400];
    save_counters.forks++;
    snprintf(text, sizeof text, "this save is forked as without the module: %s", why);
    module_log("warning", text);
    return -1;
}

pid_t save_begin(void)
{
    struct save_args args = {0};
    struct orbit_area *const *areas;
    uint64_t began = now_us();
    size_t count;
    pid_t pid = save_orbit_pid();
    args.fault = (int32_t)next_fault;
    args.pipe = report_pipe;
    snprintf(args.file, sizeof args.file, "%s", file_name);
    if (!orbit || future)
        return -1;
    if (pid == 0)
        return fork_instead("the orbit is being started again");
    if (!getcwd(args.directory, sizeof args.directory))
        return fork_instead("the working directory has no name");
    areas = areas_now(&count);
    if (!areas)
        return fork_instead(orbit_last_error());
    future = orbit_call_async(orbit, 0, count, areas, NULL, &args, sizeof args);
    if (!future)
        return fork_instead(orbit_last_error());
    next_fault = SAVE_GOOD;
    pending_pid = pid;
    save_counters.saves++;
    save_counters.areas = count;
    save_counters.call_us = now_us() - began;
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
    if (error < 0) {
        save_counters.failed++;
        snprintf(save_last_failure, sizeof save_last_failure, "%s", outcome.text);
        module_log("warning", save_last_failure);
    } else if (outcome.value != 0) {
        save_counters.failed++;
        snprintf(save_last_failure, sizeof save_last_failure, "rdbSave: %s", strerror((int)outcome.value));
    }
    return true;
}
