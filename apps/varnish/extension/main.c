/* A pool's herder in main: shows the pool to the orbit, and does what its herder decides, as far as
 * it proves right.
 *
 * Under the pool's mutex it copies the pool and when the worker that has been idle longest was used
 * last. The orbit is called without it. Each decision is checked against the pool as it is by then.
 */
#define _GNU_SOURCE
#include "herder.h"
#include "task.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Failed calls in a row after which Varnish' own herder takes over. */
#define MAX_FAILURES 3
#define DEADLINE_US (2 * 1000 * 1000)
#define MEMORY (64 << 20)
#define PAUSE_S 0.05
#define LONGEST_DELAY_S 86400.0

static pthread_mutex_t set_up = PTHREAD_MUTEX_INITIALIZER;
static struct orbit *orbit;
static struct herder_ways ways;
static int is_given_up;

/* Varnish' log, its tag for errors; line by line. */
static void log_text(const char *what, const char *text)
{
    while (*text) {
        int size = (int)strcspn(text, "\n");
        VSL(SLT_Error, 0, "orbit_herder: %s%.*s", what, size, text);
        text += size + (text[size] == '\n');
        what = "";
    }
}

/* ---- the orbit ---- */

static int is_code_of_varnishd(const void *address)
{
    Dl_info of_address, of_herder;
    return address && dladdr(address, &of_address) && dladdr((void *)pool_herder, &of_herder) &&
           of_address.dli_fbase == of_herder.dli_fbase;
}

/* The data that the last call pushed; 0: it pushed something else. */
static int take_data(struct orbit_future *future, void *bytes, size_t size)
{
    struct orbit_update *update;
    int is_taken = 0;
    while (pull_orbit(future, &update) == 1) {
        const struct orbit_item *item = orbit_update_first(update);
        if (item && item->kind == ORBIT_ITEM_DATA && item->size == size) {
            memcpy(bytes, item->data, size);
            is_taken = 1;
        }
        orbit_update_free(update);
    }
    return is_taken;
}

/* 0: bytes are there. Otherwise it is logged. */
static int call(orbit_entry entry, const struct herder_view *view, void *bytes, size_t size)
{
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    struct orbit_outcome outcome;
    struct orbit_future *future;
    int is_taken, error;
    options.func_once = entry;
    options.deadline_us = DEADLINE_US;
    future = orbit_call_async_with(orbit, 0, NULL, view, view ? sizeof *view : 0, &options);
    if (!future) {
        log_text("the herder could not be called: ", orbit_last_error());
        return -1;
    }
    is_taken = take_data(future, bytes, size);
    error = orbit_future_wait(future, &outcome);
    orbit_future_free(future);
    if (error < 0) {
        log_text("a run of the herder failed: ", outcome.text);
        return -1;
    }
    if (outcome.value != 0 || !is_taken) {
        char text[64];
        snprintf(text, sizeof text, "it returned %ld", outcome.value);
        log_text("a run of the herder failed: ", text);
        return -1;
    }
    return 0;
}

static int start_orbit(void)
{
    struct orbit_config config = ORBIT_CONFIG_INIT;
    struct task_process task;
    config.window = 16 << 20;
    task_describe(&task, "varnish-herder", herder_task, MEMORY);
    task.options.init = herder_init;
    task.options.pending = ORBIT_PENDING_KEEP;
    if (orbit_init_with(&config) < 0 || !(orbit = orbit_create_with(&task.options))) {
        log_text("no process for the herder: ", orbit_last_error());
        return -1;
    }
    if (call(herder_learn, NULL, &ways, sizeof ways) != 0 || !is_code_of_varnishd((void *)ways.thread) ||
        !is_code_of_varnishd((void *)ways.kiss)) {
        log_text("", "this varnishd is not one of version 7.1 that the library knows");
        return -1;
    }
    VSL(SLT_Debug, 0, "orbit_herder: ready");
    return 0;
}

static int is_available(void)
{
    int is_there;
    pthread_mutex_lock(&set_up);
    if (!orbit && !is_given_up && start_orbit() != 0)
        is_given_up = 1;
    is_there = !is_given_up;
    pthread_mutex_unlock(&set_up);
    return is_there;
}

static uint32_t next_fault(void)
{
    const char *path = getenv("ORBIT_HERDER_FAULTS");
    FILE *file = path ? fopen(path, "r+e") : NULL;
    uint32_t fault = FAULT_NONE, count = 0;
    char word[16];
    if (!file)
        return FAULT_NONE;
    if (fscanf(file, "%15s %u", word, &count) == 2 && count > 0)
        fault = (uint32_t)fault_by_name(word, NULL);
    if (fault != FAULT_NONE) {
        rewind(file);
        fprintf(file, "%s %u\n", word, count - 1);
    }
    fclose(file);
    return fault;
}

/* ---- the pool ---- */

static void lock(void *pool)
{
    Lck__Lock(&POOL_FIELD(pool, struct lock, POOL_MUTEX), __func__, __LINE__);
}

static void unlock(void *pool)
{
    Lck__Unlock(&POOL_FIELD(pool, struct lock, POOL_MUTEX), __func__, __LINE__);
}

static void count(enum counter_offset offset, int64_t by)
{
    COUNTER(VSC_C_main, offset) += (uint64_t)by;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void sleep_for(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&time, NULL);
}

/* The worker that has been idle longest, or NULL. With the mutex. */
static struct worker *longest_idle(void *pool)
{
    struct pool_task *task = VTAILQ_LAST(&POOL_FIELD(pool, struct task_queue, POOL_IDLE_QUEUE), task_queue);
    return task && !task->func ? task->priv : NULL;
}

static void fill_view(void *pool, struct herder_view *view)
{
    const struct worker *idle;
    lock(pool);
    memcpy(view->pool, pool, POOL_SIZE);
    idle = longest_idle(pool);
    view->has_idle = idle != NULL;
    view->last_used = idle ? idle->lastused : 0;
    unlock(pool);
    memcpy(&view->params, (const void *)cache_param, sizeof view->params);
    view->pool_id = (uint64_t)(uintptr_t)pool;
    view->fault = next_fault();
}

static int is_sane(const struct herder_step *step)
{
    return step->does > DOES_NOTHING && step->does <= DOES_END && step->kisses <= 1 && step->sums_up <= 1 &&
           step->is_limited <= 1 && step->delay >= 0 && step->delay <= LONGEST_DELAY_S;
}

/* What was counted in the pool goes to the counters of all. */
static void sum_up(void *pool)
{
    lock(pool);
    count(COUNT_QUEUED, POOL_FIELD(pool, int64_t, POOL_SQUEUED));
    count(COUNT_SESS_DROPPED, POOL_FIELD(pool, int64_t, POOL_SDROPPED));
    count(COUNT_REQ_DROPPED, POOL_FIELD(pool, int64_t, POOL_RDROPPED));
    POOL_FIELD(pool, uint64_t, POOL_SQUEUED) = 0;
    POOL_FIELD(pool, uint64_t, POOL_SDROPPED) = 0;
    POOL_FIELD(pool, uint64_t, POOL_RDROPPED) = 0;
    unlock(pool);
}

/* Ends the worker that has been idle longest, if that is right. */
static void kiss(void *pool)
{
    struct worker *idle;
    int is_right;
    unsigned threads = POOL_FIELD(pool, unsigned, POOL_NTHR);
    int dies = POOL_FIELD(pool, int, POOL_DIE);
    lock(pool);
    idle = longest_idle(pool);
    is_right = idle && (dies || threads > cache_param->wthread_min) &&
               (dies || idle->lastused < now() - cache_param->wthread_timeout || threads > cache_param->wthread_max);
    if (is_right) {
        VTAILQ_REMOVE(&POOL_FIELD(pool, struct task_queue, POOL_IDLE_QUEUE), idle->task, list);
        POOL_FIELD(pool, unsigned, POOL_NIDLE)--;
        idle->task->func = ways.kiss;
        pthread_cond_signal(&idle->cond);
    }
    unlock(pool);
    if (!is_right)
        return;
    POOL_FIELD(pool, unsigned, POOL_NTHR)--;
    Lck__Lock(&pool_mtx, __func__, __LINE__);
    count(COUNT_THREADS, -1);
    count(COUNT_DESTROYED, 1);
    Lck__Unlock(&pool_mtx, __func__, __LINE__);
}

/* Makes a worker thread, if that is right. Gives how the next step resumes. */
static enum resume breed(void *pool)
{
    pthread_attr_t attributes;
    pthread_t thread;
    struct pool_info *info;
    int error;
    unsigned threads = POOL_FIELD(pool, unsigned, POOL_NTHR);
    if (POOL_FIELD(pool, int, POOL_DIE) || threads >= cache_param->wthread_max)
        return RESUME_FRESH;
    info = calloc(1, sizeof *info);
    if (!info || pthread_attr_init(&attributes) != 0) {
        free(info);
        return RESUME_FRESH;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (cache_param->wthread_stacksize != UINT_MAX)
        pthread_attr_setstacksize(&attributes, (size_t)cache_param->wthread_stacksize);
    info->magic = POOL_INFO_MAGIC;
    pthread_attr_getstacksize(&attributes, &info->stacksize);
    info->pool = pool;
    error = real_pthread_create(&thread, &attributes, ways.thread, info);
    pthread_attr_destroy(&attributes);
    if (error != 0)
        free(info);
    else
        POOL_FIELD(pool, unsigned, POOL_NTHR)++;
    Lck__Lock(&pool_mtx, __func__, __LINE__);
    count(error ? COUNT_FAILED : COUNT_THREADS, 1);
    if (!error)
        count(COUNT_CREATED, 1);
    Lck__Unlock(&pool_mtx, __func__, __LINE__);
    if (error == 0)
        return RESUME_BRED;
    VSL(SLT_Debug, 0, "Create worker thread failed %d %s", error, strerror(error));
    sleep_for(cache_param->wthread_fail_delay);
    return RESUME_FRESH;
}

/* Unless something has come up since the herder saw the pool. */
static int wait_for(void *pool, double delay)
{
    int waited = 0;
    lock(pool);
    if (!POOL_FIELD(pool, int, POOL_DIE) && (POOL_FIELD(pool, unsigned, POOL_LQUEUE) == 0 ||
                                             POOL_FIELD(pool, unsigned, POOL_NTHR) >= cache_param->wthread_max))
        waited = Lck_CondWaitTimeout(&POOL_FIELD(pool, pthread_cond_t, POOL_COND),
                                     &POOL_FIELD(pool, struct lock, POOL_MUTEX), delay);
    unlock(pool);
    return waited;
}

/* Does what the herder decided. 1: the herder has ended. */
static int follow(void *pool, const struct herder_step *step, struct herder_view *view)
{
    view->resume = RESUME_WAITED;
    view->waited = 0;
    if (step->sums_up)
        sum_up(pool);
    if (step->is_limited)
        count(COUNT_LIMITED, 1);
    if (step->kisses)
        kiss(pool);
    if (step->does == DOES_BREED)
        view->resume = breed(pool);
    else if (step->does == DOES_WAIT)
        view->waited = wait_for(pool, step->delay);
    else if (step->does == DOES_SLEEP)
        sleep_for(step->delay);
    return step->does == DOES_END && POOL_FIELD(pool, int, POOL_DIE) && POOL_FIELD(pool, unsigned, POOL_NTHR) == 0;
}

void *herder_in_main(void *pool)
{
    struct herder_view *view = calloc(1, sizeof *view);
    int failures = 0;
    if (!view || !is_available()) {
        free(view);
        return pool_herder(pool);
    }
    THR_SetName("pool_herder");
    THR_Init();
    while (failures < MAX_FAILURES) {
        struct herder_step step;
        fill_view(pool, view);
        /* The herder counts the thread that it has made when it resumes. */
        if (view->resume == RESUME_BRED)
            POOL_FIELD(view->pool, unsigned, POOL_NTHR)--;
        if (call(NULL, view, &step, sizeof step) != 0) {
            failures++;
            view->resume = RESUME_FRESH;
            sleep_for(PAUSE_S);
        } else if (!is_sane(&step)) {
            log_text("a run of the herder failed: ", "it decided what cannot be");
            failures++;
            view->resume = RESUME_FRESH;
        } else {
            failures = 0;
            if (follow(pool, &step, view)) {
                free(view);
                return NULL;
            }
        }
    }
    log_text("", "the herder failed too often: Varnish' own takes over for this pool");
    free(view);
    return pool_herder(pool);
}
