/* Calls of the task: in an orbit, in a fork for each call (the paper's figure 13 compares with
 * that), or in the worker itself (where the server's own detector would crash). One call at a
 * time; each hands back cycles. */
#include "detector.h"
#include "task.h"

#include <errno.h>
#include <orbit.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"

typedef void (*found_function)(struct lock_scan *scan, const struct found_cycle *cycle, size_t size);

static struct orbit *orbit;
static struct orbit_area *area;
static void *in_area; /* the packed waits, for the task */

/* The pending call, and what it is about. */
static struct orbit_future *future;
static struct lock_scan *called_scan;
static found_function called_found;
static instr_time called_at;

static uint64 memory(void)
{
    return (uint64)setting_memory << 20;
}

/* Runs in the orbit, before its first call: no exit callbacks, which would release what the
 * worker holds. */
static void *leave_the_cluster(void)
{
    on_exit_reset();
    set_ps_display("task");
    return NULL;
}

static void start_orbit(void)
{
    struct task_process task;
    struct orbit_area_options region = ORBIT_AREA_OPTIONS_INIT;
    struct orbit_config config = ORBIT_CONFIG_INIT;
    /* The cluster's memory, main segment and dynamic ones of whatever type: the orbit has none
     * of it. */
    config.shared_memory = ORBIT_SHARED_ABSENT;
    task_describe(&task, "pg-deadlock", search_task, memory());
    task.options.init = leave_the_cluster;
    task.options.deadline_us = (uint64)setting_deadline * 1000;
    region.name = "lock waits";
    region.limit = (size_t)1 << 30;
    /* What becomes an orphan of the worker must become its child: where the postmaster is
     * process 1 of a container, it would take a killed orphan for a crashed backend. */
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        ereport(ERROR, (errmsg("orbit_deadlock: could not become a subreaper: %m")));
    if (orbit_init_with(&config) < 0 || !(orbit = orbit_create_with(&task.options))
        || !(area = orbit_area_create_with(&region)))
        ereport(ERROR, (errmsg("orbit_deadlock: could not set up the detector's process: %s", orbit_last_error()),
                        errhint("Deadlocks are broken by the server itself after orbit_deadlock.server_timeout.")));
}

void detector_start(void)
{
    if (setting_run_in == RUN_IN_ORBIT)
        start_orbit();
}

/* Longest wait for processes that were killed to end, milliseconds. */
#define REAP_MS 2000

/* Reaps what this process has adopted. Where the postmaster is process 1 it would get what is
 * left here, and take a child it does not know, and that was killed, for a crashed backend. */
static void reap_all(void)
{
    for (int waited = 0; waited < REAP_MS; waited++) {
        pid_t ended = waitpid(-1, NULL, WNOHANG | __WALL);
        if (ended < 0 && errno == ECHILD)
            return;
        if (ended == 0)
            pg_usleep(1000);
    }
}

void detector_stop(void)
{
    if (setting_run_in == RUN_IN_ORBIT) {
        orbit_shutdown();
        reap_all();
    }
    orbit = NULL;
}

/* The library reaps its template, at once. What is still a zombie when this is called again is
 * an orphan. */
void detector_reap_orphans(void)
{
    static pid_t seen;
    siginfo_t ended = {0};
    if (setting_run_in != RUN_IN_ORBIT || waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0)
        return;
    if (ended.si_pid != 0 && ended.si_pid == seen)
        waitpid(seen, NULL, WNOHANG | __WALL);
    seen = ended.si_pid;
}

void detector_reload(void)
{
    struct orbit_limits bounds = task_limits(memory());
    if (orbit && orbit_set_limits(orbit, &bounds) < 0)
        ereport(WARNING, (errmsg("orbit_deadlock: could not change the limits of the detector: "
            "%s", orbit_last_error())));
}

int detector_orbit_pid(void)
{
    struct orbit_counters counters;
    return orbit && orbit_stats(orbit, &counters) == 0 ? counters.pid : 0;
}

/* ---- how a call ended ---- */

static void count_call(size_t size, bool failed, bool crashed)
{
    instr_time now;
    TimestampTz at = GetCurrentTimestamp();
    INSTR_TIME_SET_CURRENT(now);
    INSTR_TIME_SUBTRACT(now, called_at);
    SpinLockAcquire(&detector_state->mutex);
    detector_state->calls++;
    detector_state->failed_calls += failed;
    detector_state->crashes += crashed;
    detector_state->call_us = (int64)INSTR_TIME_GET_MICROSEC(now);
    detector_state->snapshot_bytes = (int64)size;
    detector_state->last_call = at;
    SpinLockRelease(&detector_state->mutex);
}

/* A failed call: the sentence to the server's log, the call stack with functions and lines below
 * it. */
static void report_failure(const char *text)
{
    const char *line_end = strchr(text, '\n');
    char *first = line_end ? pnstrdup(text, line_end - text) : pstrdup(text);
    status_event(first);
    if (line_end)
        ereport(WARNING, (errmsg("orbit_deadlock: a run of the detector failed: "
            "%s", first), errdetail_internal("%s", line_end + 1)));
    else
        ereport(WARNING, (errmsg("orbit_deadlock: a run of the detector failed: %s", first)));
    pfree(first);
}

/* ---- in an orbit ---- */

static bool copy_into_area(struct lock_scan *scan)
{
    if (orbit_usable_size(in_area) < scan->size) {
        orbit_free(in_area);
        in_area = orbit_alloc(area, Max(scan->size * 2, 4096));
        if (!in_area)
            return false;
    }
    memcpy(in_area, scan->waits, scan->size);
    return true;
}

static void take_findings(void)
{
    struct orbit_update *update;
    while (orbit_try_pull(future, &update) == 1) {
        const struct orbit_item *item = orbit_update_first(update);
        size_t size = item && item->kind == ORBIT_ITEM_DATA ? item->size : 0;
        /* A copy: it need not be aligned where it is. */
        struct found_cycle *cycle = palloc0(Max(size, sizeof *cycle));
        if (size > 0)
            memcpy(cycle, item->data, size);
        called_found(called_scan, cycle, size);
        pfree(cycle);
        orbit_update_free(update);
    }
}

static enum call_end finish_orbit_call(int error, const struct orbit_outcome *outcome)
{
    bool failed = error < 0;
    take_findings();
    orbit_future_free(future);
    future = NULL;
    count_call(called_scan->size, failed, failed && outcome->kind != ORBIT_CANCELLED);
    if (failed)
        report_failure(outcome->text);
    else if (outcome->value < 0)
        report_failure("not enough memory for this many waits: raise orbit_deadlock.memory");
    return failed || outcome->value < 0 ? CALL_FAILED : CALL_RETURNED;
}

static enum call_end call_orbit(int32_t fault)
{
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    struct search_args args = {0};
    struct orbit_outcome outcome;
    int error;
    /* A call would wait for an orbit that is being started again; the worker has other things to
     * do. */
    if (detector_orbit_pid() == 0)
        return CALL_NOT_MADE;
    options.deadline_us = (uint64)setting_deadline * 1000;
    if (!copy_into_area(called_scan)) {
        report_failure(psprintf("no room for the waits: %s", orbit_last_error()));
        return CALL_NOT_MADE;
    }
    args.waits = in_area;
    args.victim_window = (int64)setting_victim_window * 1000;
    args.fault = fault;
    future = orbit_call_async_with(orbit, 1, &area, &args, sizeof args, &options);
    if (!future)
        return CALL_NOT_MADE;
    if (!setting_wait_for_call)
        return CALL_PENDING;
    error = orbit_future_wait(future, &outcome);
    return finish_orbit_call(error, &outcome);
}

enum call_end detector_poll(void)
{
    struct orbit_outcome outcome;
    int error = orbit_future_poll(future, &outcome);
    /* A wait has the functions of its call stack named: two seconds at most, in which the server's
     * own detector is no longer put off. */
    if (error < 0 && error != -EINPROGRESS && outcome.kind == ORBIT_CRASHED)
        error = orbit_future_wait(future, &outcome);
    return error == -EINPROGRESS ? CALL_PENDING : finish_orbit_call(error, &outcome);
}

int detector_fd(void)
{
    return orbit_future_fd(future);
}

/* ---- in a fork for each call ---- */

static int to_parent;

static void write_cycle(void *what_for, const struct found_cycle *cycle)
{
    const struct search_args *args = what_for;
    size_t size = sizeof *cycle + (size_t)cycle->length * sizeof(int32_t);
    if (args->fault == FAULT_ASSERT_ON_CYCLE)
        abort();
    if (write(to_parent, cycle, size) != (ssize_t)size)
        _exit(1);
}

static bool read_whole(int fd, void *to, size_t size)
{
    size_t got = 0;
    while (got < size) {
        ssize_t n = read(fd, (char *)to + got, size - got);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static enum call_end call_fork(int32_t fault)
{
    struct search_args args = {called_scan->waits, (int64)setting_victim_window * 1000, fault, 0};
    struct found_cycle head, *cycle;
    int ends[2], status = 0;
    pid_t child;
    if (pipe(ends) != 0)
        ereport(ERROR, (errmsg("orbit_deadlock: could not make a pipe: %m")));
    child = fork();
    if (child == 0) {
        close(ends[0]);
        to_parent = ends[1];
        do_fault(fault);
        _exit(find_deadlocks(args.waits, args.victim_window, write_cycle, &args) < 0);
    }
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return CALL_NOT_MADE;
    }
    while (read_whole(ends[0], &head, sizeof head) && head.length >= 2
        && head.length <= called_scan->waits->wait_count) {
        size_t rest = (size_t)head.length * sizeof(int32_t);
        cycle = palloc(sizeof head + rest);
        *cycle = head;
        if (!read_whole(ends[0], cycle->waits, rest))
            break;
        called_found(called_scan, cycle, sizeof head + rest);
        pfree(cycle);
    }
    close(ends[0]);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    count_call(called_scan->size, status != 0, WIFSIGNALED(status));
    if (status == 0)
        return CALL_RETURNED;
    report_failure(WIFSIGNALED(status) ? psprintf("killed by signal %d", WTERMSIG(status)) : "not enough memory for "
        "this many waits");
    return CALL_FAILED;
}

/* ---- in the worker ---- */

static void pass_cycle(void *what_for, const struct found_cycle *cycle)
{
    const struct search_args *args = what_for;
    if (args->fault == FAULT_ASSERT_ON_CYCLE)
        abort();
    called_found(called_scan, cycle, sizeof *cycle + (size_t)cycle->length * sizeof(int32_t));
}

static enum call_end call_here(int32_t fault)
{
    struct search_args args = {called_scan->waits, (int64)setting_victim_window * 1000, fault, 0};
    long found;
    do_fault(fault);
    found = find_deadlocks(args.waits, args.victim_window, pass_cycle, &args);
    count_call(called_scan->size, found < 0, false);
    return found < 0 ? CALL_FAILED : CALL_RETURNED;
}

enum call_end detector_call(struct lock_scan *scan, int32_t fault, found_function found)
{
    called_scan = scan;
    called_found = found;
    INSTR_TIME_SET_CURRENT(called_at);
    switch (setting_run_in) {
    case RUN_IN_FORK:
        return call_fork(fault);
    case RUN_IN_WORKER:
        return call_here(fault);
    default:
        return call_orbit(fault);
    }
}
