/* The task, in the orbit: Varnish' own herder, run on a replica of the pool until it makes a
 * thread, waits or sleeps.
 *
 * The herder is a loop that never returns. It has a stack of its own here, for each pool, and
 * continues there with the next call: what it remembers from round to round it remembers here too.
 * Locks, counters and parameters are the orbit's own.
 */
#include "herder.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#define STACK_SIZE (256 << 10)
#define MAX_POOLS 64
#define BILLION 1e9

int is_herder_in_orbit;

struct replica {
    uint64_t pool_id;
    char pool[POOL_SIZE] __attribute__((aligned(16)));
    struct worker idle;
    struct lock lock;
    struct params params;
    ucontext_t herder, caller;
    void *stack;
    int is_started;
    struct herder_step step;
    int waited;
    void *(*thread)(void *);
};

struct store {
    struct replica *replicas[MAX_POOLS];
    struct lock pools_lock;
};

static struct replica *current;
static char counters[COUNTERS_SIZE] __attribute__((aligned(16)));
static char lock_counters[COUNTERS_SIZE] __attribute__((aligned(16)));

/* A check of Varnish' own that fails: main would write a report to memory that it shares with
 * its manager, and abort. */
static __attribute__((noreturn)) void fail(const char *function, const char *file, int line, const char *condition,
    enum vas_e kind)
{
    (void)function, (void)file, (void)line, (void)condition, (void)kind;
    abort();
}

void *herder_init(void)
{
    VAS_Fail_Func = fail;

    struct store *store = calloc(1, sizeof *store);
    if (store) {
        Lck__New(&store->pools_lock, (struct VSC_lck *)lock_counters, "orbit");
        pool_mtx = store->pools_lock;
        VSC_C_main = counters;
    }
    return store;
}

/* ---- what ends a step ---- */

static void end_step(uint32_t does, double delay)
{
    current->step.does = does;
    current->step.delay = delay;
    swapcontext(&current->herder, &current->caller);
}

int orbit_pthread_create(pthread_t *thread, void *(*start)(void *), void *argument)
{
    const struct pool_info *info = argument;
    current->thread = info->magic == POOL_INFO_MAGIC && info->pool == current->pool ? start : NULL;
    memset(thread, 0, sizeof *thread);
    free(argument);
    end_step(DOES_BREED, 0);
    return 0;
}

int orbit_timed_wait(const struct timespec *until)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    end_step(DOES_WAIT, (double)(until->tv_sec - now.tv_sec) + (double)(until->tv_nsec - now.tv_nsec) / BILLION);
    return current->waited;
}

int orbit_sleep(const struct timespec *time)
{
    end_step(DOES_SLEEP, (double)time->tv_sec + (double)time->tv_nsec / BILLION);
    return 0;
}

static void run_herder(void)
{
    pool_herder(current->pool);
    end_step(DOES_END, 0);
}

/* ---- the replica ---- */

static struct replica *replica_of(struct store *store, uint64_t pool_id)
{
    struct replica *replica = NULL;
    for (int i = 0; i < MAX_POOLS && !replica; i++) {
        if (!store->replicas[i]) {
            replica = store->replicas[i] = aligned_alloc(64, (sizeof *replica + 63) / 64 * 64);
            if (!replica)
                return NULL;
            memset(replica, 0, sizeof *replica);
            replica->pool_id = pool_id;
        } else if (store->replicas[i]->pool_id == pool_id) {
            replica = store->replicas[i];
        }
    }
    return replica;
}

static void fill(struct replica *replica, const struct herder_view *view)
{
    struct task_queue *queue = (struct task_queue *)(replica->pool + POOL_IDLE_QUEUE);
    pthread_cond_t *condition = (pthread_cond_t *)(replica->pool + POOL_COND);
    struct pool_task *task = replica->idle.task;
    memcpy(replica->pool, view->pool, POOL_SIZE);
    /* Main has not counted the thread that it has just made: the herder does so next. */
    if (view->resume == RESUME_BRED && !replica->is_started)
        POOL_FIELD(replica->pool, unsigned, POOL_NTHR)++;
    POOL_FIELD(replica->pool, struct lock, POOL_MUTEX) = replica->lock;
    pthread_cond_init(condition, NULL);
    VTAILQ_INIT(queue);
    memset(&replica->idle, 0, sizeof replica->idle);
    replica->idle.magic = WORKER_MAGIC;
    replica->idle.lastused = view->last_used;
    task->priv = &replica->idle;
    pthread_cond_init(&replica->idle.cond, NULL);
    if (view->has_idle)
        VTAILQ_INSERT_TAIL(queue, task, list);
    replica->params = view->params;
    cache_param = &replica->params;
    replica->waited = view->waited;
}

static int start_herder(struct replica *replica)
{
    if (!replica->stack) {
        char *stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED || mprotect(stack, 4096, PROT_NONE) != 0)
            return -1;
        replica->stack = stack;
    }
    getcontext(&replica->herder);
    replica->herder.uc_stack.ss_sp = replica->stack;
    replica->herder.uc_stack.ss_size = STACK_SIZE;
    replica->herder.uc_link = &replica->caller;
    makecontext(&replica->herder, run_herder, 0);
    replica->is_started = 1;
    return 0;
}

/* One step. The kiss that the worker that has been idle longest got, or NULL, is in *kiss. */
static int run_step(struct store *store, const struct herder_view *view, task_func_t **kiss)
{
    struct replica *replica = replica_of(store, view->pool_id);
    if (!replica)
        return -1;
    if (view->resume == RESUME_FRESH)
        replica->is_started = 0;
    /* A herder that is given up may hold its lock. */
    if (!replica->is_started) {
        memset(&replica->lock, 0, sizeof replica->lock);
        Lck__New(&replica->lock, (struct VSC_lck *)lock_counters, "orbit");
    }
    fill(replica, view);
    if (!replica->is_started && start_herder(replica) != 0)
        return -1;
    current = replica;
    memset(&replica->step, 0, sizeof replica->step);
    memset(counters, 0, sizeof counters);
    is_herder_in_orbit = 1;
    swapcontext(&replica->caller, &replica->herder);
    is_herder_in_orbit = 0;
    if (replica->step.does == DOES_END)
        replica->is_started = 0;
    *kiss = replica->idle.task->func;
    replica->step.kisses = *kiss != NULL;
    replica->step.is_limited = COUNTER(counters, COUNT_LIMITED) != 0;
    replica->step.sums_up = POOL_FIELD(view->pool, const unsigned, POOL_NTHR) > 0 &&
                            (COUNTER(counters, COUNT_QUEUED) || COUNTER(counters, COUNT_SESS_DROPPED) ||
                             COUNTER(counters, COUNT_REQ_DROPPED));
    return 0;
}

static void push(const void *bytes, size_t size)
{
    struct orbit_update *update = orbit_update_create();
    if (update) {
        orbit_update_add_data(update, bytes, size);
        orbit_push(update);
        orbit_update_free(update);
    }
}

long herder_task(void *store, void *args)
{
    const struct herder_view *view = args;
    task_func_t *kiss;
    if (!store || run_step(store, view, &kiss) != 0)
        return -1;
    do_fault(view->fault);
    if (view->fault == FAULT_LIE) {
        current->step.does = DOES_BREED;
        current->step.kisses = 7;
        current->step.delay = -1;
    }
    push(&current->step, sizeof current->step);
    return 0;
}

/* ---- what is learnt, and the proof of the offsets ---- */

/* A pool of our own, as the herder finds it. */
static struct herder_view imagined(uint32_t threads, uint32_t idle, uint32_t waiting, double idle_for)
{
    struct herder_view view;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(&view, 0, sizeof view);
    POOL_FIELD(view.pool, unsigned, 0) = POOL_MAGIC;
    POOL_FIELD(view.pool, unsigned, POOL_NTHR) = threads;
    POOL_FIELD(view.pool, unsigned, POOL_NIDLE) = idle;
    POOL_FIELD(view.pool, unsigned, POOL_LQUEUE) = waiting;
    POOL_FIELD(view.pool, uint64_t, POOL_SQUEUED) = 11;
    POOL_FIELD(view.pool, uint64_t, POOL_SDROPPED) = 12;
    POOL_FIELD(view.pool, uint64_t, POOL_RDROPPED) = 13;
    view.pool_id = 1;
    view.has_idle = idle != 0;
    view.last_used = (double)now.tv_sec - idle_for;
    view.params = *(const struct params *)cache_param;
    view.params.wthread_min = 10;
    view.params.wthread_max = 20;
    view.params.wthread_timeout = 100;
    view.params.wthread_destroy_delay = 1;
    view.params.wthread_add_delay = 0;
    return view;
}

#define REQUIRE(condition)   \
    do {                     \
        if (!(condition))    \
            return __LINE__; \
    } while (0)

/* Gives 0, or the line of what is not as expected. */
static long learn(struct store *store, struct herder_ways *ways)
{
    task_func_t *kiss;
    struct replica *replica;
    struct herder_view view = imagined(9, 0, 0, 0);
    /* Too few threads: it makes one, and counts it. */
    REQUIRE(run_step(store, &view, &kiss) == 0);
    replica = current;
    REQUIRE(replica->step.does == DOES_BREED && replica->thread && !kiss);
    ways->thread = replica->thread;
    view.resume = RESUME_BRED;
    REQUIRE(run_step(store, &view, &kiss) == 0);
    REQUIRE(POOL_FIELD(replica->pool, unsigned, POOL_NTHR) == 10);
    REQUIRE(COUNTER(counters, COUNT_THREADS) == 1 && COUNTER(counters, COUNT_CREATED) == 1);
    REQUIRE(replica->step.does == DOES_WAIT && replica->step.delay > 90 && replica->step.delay < 101);
    /* Requests wait: it makes one more, up to the limit. */
    view = imagined(10, 0, 1, 0);
    view.resume = RESUME_WAITED;
    REQUIRE(run_step(store, &view, &kiss) == 0 && replica->step.does == DOES_BREED);
    view = imagined(20, 0, 1, 0);
    REQUIRE(run_step(store, &view, &kiss) == 0 && replica->step.does == DOES_WAIT && replica->step.delay < 2);
    REQUIRE(replica->step.is_limited && replica->step.sums_up);
    REQUIRE(COUNTER(counters, COUNT_QUEUED) == 11 && COUNTER(counters, COUNT_SESS_DROPPED) == 12 &&
            COUNTER(counters, COUNT_REQ_DROPPED) == 13);
    /* One has been idle long: it gets the kiss. One that has not, does not. */
    view = imagined(15, 3, 0, 1000);
    REQUIRE(run_step(store, &view, &kiss) == 0 && kiss && replica->step.does == DOES_WAIT);
    ways->kiss = kiss;
    REQUIRE(POOL_FIELD(replica->pool, unsigned, POOL_NTHR) == 14
        && POOL_FIELD(replica->pool, unsigned, POOL_NIDLE) == 2);
    REQUIRE((int64_t)COUNTER(counters, COUNT_THREADS) == -1 && COUNTER(counters, COUNT_DESTROYED) == 1);
    view = imagined(15, 3, 0, 50);
    REQUIRE(run_step(store, &view, &kiss) == 0 && !kiss && replica->step.does == DOES_WAIT);
    REQUIRE(replica->step.delay > 40 && replica->step.delay < 60);
    /* The pool ends: its threads do, then the herder. */
    view = imagined(1, 1, 0, 0);
    POOL_FIELD(view.pool, int, POOL_DIE) = 1;
    view.resume = RESUME_WAITED;
    REQUIRE(run_step(store, &view, &kiss) == 0 && kiss == ways->kiss);
    view = imagined(0, 0, 0, 0);
    POOL_FIELD(view.pool, int, POOL_DIE) = 1;
    view.resume = RESUME_WAITED;
    REQUIRE(run_step(store, &view, &kiss) == 0 && replica->step.does == DOES_END);
    return 0;
}

long herder_learn(void *store, void *args)
{
    struct herder_ways ways = {NULL, NULL};
    long line = store ? learn(store, &ways) : __LINE__;
    (void)args;
    if (line == 0)
        push(&ways, sizeof ways);
    return line;
}
