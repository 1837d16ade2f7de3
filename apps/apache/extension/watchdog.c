/* The watchdog: a thread of the child calls its task each quarter of the limit, a second at most.
 * Where the task finds that a lock is held beyond the limit, a second call diagnoses, and the
 * thread adds what the holder is doing now.
 */
#include "module.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

atomic_uint_least64_t watchdog_reports;

static struct orbit_area *area;
static struct lock_table *table;
static void (*record)(struct lock_table *);
static server_rec *log_server;
static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stopped = PTHREAD_COND_INITIALIZER;
static atomic_bool is_stopping;

/* Waits; true: it is time to end. */
static bool sleep_ms(int ms)
{
    struct timespec until;
    bool stop;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&lock);
    while (!is_stopping && pthread_cond_timedwait(&stopped, &lock, &until) == 0)
        ;
    stop = is_stopping;
    pthread_mutex_unlock(&lock);
    return stop;
}

/* The state of a thread of this process, as the kernel has it. */
static const char *state_of(int tid)
{
    char path[64], line[256] = "";
    const char *end;
    FILE *file;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    file = fopen(path, "re");
    if (file) {
        if (!fgets(line, sizeof line, file))
            line[0] = 0;
        fclose(file);
    }
    end = strrchr(line, ')');
    switch (end ? end[1] ? end[2] : 0 : 0) {
    case 'R':
        return "runs";
    case 'S':
        return "is asleep";
    case 'D':
        return "is blocked in the kernel";
    case 'T':
    case 't':
        return "is stopped";
    default:
        return "has ended";
    }
}

/* One finding of the task, of which nothing is trusted: numbers are printed, text is cut and
 * cleaned. */
static void report(const struct orbit_item *item)
{
    struct long_hold hold;
    if (item->kind != ORBIT_ITEM_DATA || item->size != sizeof hold)
        return;
    memcpy(&hold, item->data, sizeof hold);
    hold.site[sizeof hold.site - 1] = 0;
    for (char *c = hold.site; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    atomic_fetch_add(&watchdog_reports, 1);
    ap_log_error(APLOG_MARK, APLOG_WARNING, 0, log_server,
                 "orbit-watchdog: thread %d has held mutex 0x%" APR_UINT64_T_HEX_FMT
                 " for %.1f s, and %d threads wait for it; taken at %s; the thread %s now",
                 hold.tid, hold.lock, (double)hold.held_ms / 1000, hold.waiters, hold.site, state_of(hold.tid));
}

/* One call. Gives the task's number, negative after a failure. */
static long call(orbit_entry entry)
{
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    struct watch_args args = {.table = table, .limit_ms = settings.lock_limit_ms};
    struct orbit_outcome outcome;
    struct orbit_update *update;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    args.now_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    args.fault = atomic_exchange(&watchdog_task.next_fault, FAULT_NONE);
    options.func_once = entry;
    options.deadline_us = (uint64_t)settings.deadline_ms * 1000;
    if (orbit_call_with(watchdog_task.orbit, 1, &area, &args, sizeof args, &options, &outcome) < 0) {
        if (outcome.kind != ORBIT_PENDING && !is_stopping) {
            atomic_fetch_add(&watchdog_task.calls, 1);
            task_failed(&watchdog_task, &outcome);
        }
        return -1;
    }
    atomic_fetch_add(&watchdog_task.calls, 1);
    while (orbit_pull(watchdog_task.orbit, &update) == 1) {
        for (const struct orbit_item *item = orbit_update_first(update); item; item = orbit_update_next(update, item))
            report(item);
        orbit_update_free(update);
    }
    return outcome.value;
}

static void *watch(void *unused)
{
    int pause = settings.lock_limit_ms / 4;
    (void)unused;
    pause = pause < 1 ? 1 : pause > 1000 ? 1000 : pause;
    while (!sleep_ms(pause))
        if (call(NULL) > 0)
            call(diagnose_task);
    return NULL;
}

static apr_status_t stop(void *unused)
{
    (void)unused;
    record(NULL);
    pthread_mutex_lock(&lock);
    is_stopping = true;
    pthread_cond_signal(&stopped);
    pthread_mutex_unlock(&lock);
    /* A task that hangs must not delay the end of the child until its deadline. */
    orbit_kill(watchdog_task.orbit);
    pthread_join(thread, NULL);
    return APR_SUCCESS;
}

static int start_thread(void)
{
    sigset_t all, before;
    int error;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, NULL, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void watchdog_child_init(apr_pool_t *pool, server_rec *server)
{
    log_server = server;
    *(void **)&record = dlsym(RTLD_DEFAULT, "orbit_apr_record");
    if (settings.lock_limit_ms == 0)
        return;
    if (!record) {
        ap_log_error(APLOG_MARK, APLOG_NOTICE, 0, server,
                     "orbit-watchdog: off, since Apache was started without orbit_apr.so in LD_PRELOAD");
        return;
    }
    if (!task_start(&watchdog_task, "orbit-watchdog", watch_task, watch_init))
        return;
    area = orbit_area_create(sizeof *table, NULL);
    table = area ? orbit_aligned_alloc(area, 4096, sizeof *table) : NULL;
    if (!table) {
        ap_log_error(APLOG_MARK, APLOG_ERR, 0, server, "orbit-watchdog: off: %s", orbit_last_error());
        return;
    }
    memset(table, 0, sizeof *table);
    if (start_thread() != 0) {
        ap_log_error(APLOG_MARK, APLOG_ERR, 0, server, "orbit-watchdog: off: no thread could be made");
        return;
    }
    apr_pool_cleanup_register(pool, NULL, stop, apr_pool_cleanup_null);
    record(table);
}
