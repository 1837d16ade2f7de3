/* The load balancing method "orbit": byrequests, decided ahead by a task in an orbit.
 *
 * A request does not wait for the task; only the first of a balancer in a child does, for 20 ms at
 * most. It takes the next decision of a schedule; when half of that is used, the next schedule is
 * ordered by an asynchronous call, on the state of the workers at that moment. Where the next
 * schedule is late (the task hangs, crashes, its process is being started again), the last one is
 * used once more from its start; where there is none, or the workers have changed, workers take
 * turns. Both keep the books of byrequests, so the next schedule makes up for them.
 *
 * The task is not trusted: a decision is an index that is checked, for a worker that is usable now.
 *
 * Apache calls a method with the balancer's thread lock held. That guards the state here, one for
 * each balancer in a child.
 */
#include "module.h"

#include "ap_mpm.h"
#include "apr_optional.h"
#include "mod_proxy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct balancer_counters balancer_counters;

/* How long the first request of a balancer in a child waits for its first schedule,
 * microseconds. */
#define FIRST_WAIT_US 20000

struct balancer_state {
    struct balancer_rows *rows; /* in the area: what the next call is shown */
    int capacity;               /* of rows */
    uint64_t signature;         /* of the workers at the last request: equal while the candidates are */
    int turn;                   /* of the rotation */
    uint16_t *decisions;        /* the schedule */
    int count, used;
    bool is_repeated;
    bool has_waited; /* for the first schedule */
    uint64_t schedule_signature;
    struct orbit_future *future; /* a pending call */
    uint64_t ordered_signature;
};

static struct orbit_area *area;
static APR_OPTIONAL_FN_TYPE(ap_proxy_retry_worker) *retry_worker;

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29);
}

/* ---- workers ---- */

static bool serves(const proxy_worker *worker)
{
    return PROXY_WORKER_IS_USABLE(worker) && !PROXY_WORKER_IS_DRAINING(worker);
}

/* Tries workers that failed again when they are due, as byrequests does; gives the signature of
 * what there is now. */
static uint64_t scan_workers(proxy_worker **workers, int n, request_rec *r)
{
    uint64_t hash = (uint64_t)n;
    for (int i = 0; i < n; i++) {
        proxy_worker *worker = workers[i];
        if (!PROXY_WORKER_IS_USABLE(worker) && retry_worker)
            retry_worker("BALANCER", worker, r->server);
        hash = mix(hash, (uint64_t)serves(worker) | (uint64_t)(unsigned)worker->s->lbfactor << 1 |
                             (uint64_t)(unsigned)worker->s->lbset << 33);
        hash = mix(hash, worker->s->status & (PROXY_WORKER_HOT_STANDBY | PROXY_WORKER_HOT_SPARE));
    }
    return hash;
}

static int rank(const proxy_worker *worker)
{
    return PROXY_WORKER_IS_STANDBY(worker) ? 2 : PROXY_WORKER_IS_SPARE(worker) ? 1 : 0;
}

/* Whether workers are chosen among each other: same set, same rank. */
static bool are_peers(const proxy_worker *a, const proxy_worker *b)
{
    return a->s->lbset == b->s->lbset && rank(a) == rank(b);
}

/* The books of byrequests: each peer is owed its factor, the one that is taken pays for all. */
static void keep_books(proxy_worker **workers, int n, proxy_worker *taken)
{
    int total = 0;
    for (int i = 0; i < n; i++) {
        if (serves(workers[i]) && are_peers(workers[i], taken)) {
            total += workers[i]->s->lbfactor;
            workers[i]->s->lbstatus += workers[i]->s->lbfactor;
        }
    }
    taken->s->lbstatus -= total;
}

/* Without a schedule: usable workers of the first set and best rank take turns. */
static proxy_worker *rotate(struct balancer_state *state, proxy_worker **workers, int n)
{
    proxy_worker *first = NULL;
    for (int i = 0; i < n; i++) {
        proxy_worker *worker = workers[i];
        if (serves(worker) && (!first || worker->s->lbset < first->s->lbset ||
                               (worker->s->lbset == first->s->lbset && rank(worker) < rank(first))))
            first = worker;
    }
    for (int i = 0; first && i < n; i++) {
        proxy_worker *worker = workers[++state->turn % n];
        if (serves(worker) && are_peers(worker, first))
            return worker;
    }
    return first;
}

/* ---- schedules ---- */

/* Takes a schedule, if it is one. */
static bool take_schedule(struct balancer_state *state, const struct orbit_item *item, int n)
{
    struct schedule head;
    uint16_t *decisions;
    if (!item || item->kind != ORBIT_ITEM_DATA || item->size < sizeof head)
        return false;
    memcpy(&head, item->data, sizeof head);
    if (head.count < 0 || head.count > MOST_AHEAD || item->size != sizeof head + (size_t)head.count * sizeof *decisions)
        return false;
    decisions = malloc((size_t)head.count * sizeof *decisions + 1);
    if (!decisions)
        return true;
    memcpy(decisions, (const char *)item->data + sizeof head, (size_t)head.count * sizeof *decisions);
    for (int i = 0; i < head.count; i++) {
        if (decisions[i] >= n) {
            free(decisions);
            return false;
        }
    }
    free(state->decisions);
    state->decisions = decisions;
    state->count = head.count;
    state->used = 0;
    state->is_repeated = false;
    state->schedule_signature = state->ordered_signature;
    return true;
}

/* Ends the pending call if it is done. */
static void collect(struct balancer_state *state, int n)
{
    struct orbit_outcome outcome;
    struct orbit_update *update;
    int error = orbit_future_poll(state->future, &outcome);
    if (error == -EINPROGRESS)
        return;
    while (orbit_try_pull(state->future, &update) == 1) {
        bool is_current = state->ordered_signature == state->signature;
        if (error == 0 && is_current && !take_schedule(state, orbit_update_first(update), n))
            atomic_fetch_add(&balancer_counters.refuted, 1);
        orbit_update_free(update);
    }
    if (error < 0)
        task_failed(&balancer_task, &outcome);
    orbit_future_free(state->future);
    state->future = NULL;
}

static bool make_room(struct balancer_state *state, int n)
{
    struct balancer_rows *rows;
    if (n <= state->capacity)
        return true;
    rows = orbit_realloc(area, state->rows, sizeof *rows + (size_t)n * sizeof rows->rows[0]);
    if (!rows)
        return false;
    state->rows = rows;
    state->capacity = n;
    return true;
}

static void fill_rows(struct balancer_state *state, proxy_worker **workers, int n)
{
    struct balancer_rows *rows = state->rows;
    rows->count = n;
    rows->reserved = 0;
    for (int i = 0; i < n; i++) {
        rows->rows[i] = (struct worker_row){
            .status = workers[i]->s->lbstatus,
            .factor = workers[i]->s->lbfactor,
            .set = workers[i]->s->lbset,
            .is_usable = PROXY_WORKER_IS_USABLE(workers[i]) != 0,
            .is_draining = PROXY_WORKER_IS_DRAINING(workers[i]) != 0,
            .is_spare = PROXY_WORKER_IS_SPARE(workers[i]) != 0,
            .is_standby = PROXY_WORKER_IS_STANDBY(workers[i]) != 0,
        };
    }
    if (state->schedule_signature == state->signature)
        for (int i = state->used; i < state->count; i++)
            rows->rows[state->decisions[i]].planned++;
}

/* Orders the next schedule. Without waiting: where the orbit is down, a later request tries
 * again. */
static void order(struct balancer_state *state, proxy_worker **workers, int n)
{
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    struct schedule_args args = {.ahead = settings.ahead};
    struct orbit_counters counters;
    if (orbit_stats(balancer_task.orbit, &counters) < 0 || counters.pid == 0 || !make_room(state, n))
        return;
    fill_rows(state, workers, n);
    args.rows = state->rows;
    args.fault = atomic_exchange(&balancer_task.next_fault, FAULT_NONE);
    options.deadline_us = (uint64_t)settings.deadline_ms * 1000;
    state->future = orbit_call_async_with(balancer_task.orbit, 1, &area, &args, sizeof args, &options);
    state->ordered_signature = state->signature;
    if (state->future)
        atomic_fetch_add(&balancer_task.calls, 1);
    else
        atomic_store(&balancer_task.next_fault, args.fault);
}

/* The next decision for a worker that is usable; NULL: none. */
static proxy_worker *next_decision(struct balancer_state *state, proxy_worker **workers, int n)
{
    for (int tried = 0; tried < state->count; tried++) {
        proxy_worker *worker;
        if (state->used == state->count) {
            state->used = 0;
            state->is_repeated = true;
        }
        worker = state->decisions[state->used] < n ? workers[state->decisions[state->used]] : NULL;
        state->used++;
        if (worker && serves(worker))
            return worker;
    }
    return NULL;
}

/* ---- the method ---- */

static struct balancer_state *state_of(proxy_balancer *balancer)
{
    if (!balancer->context)
        balancer->context = calloc(1, sizeof(struct balancer_state));
    return balancer->context;
}

static bool needs_schedule(const struct balancer_state *state)
{
    return state->schedule_signature != state->signature || state->is_repeated || 2 * state->used >= state->count ||
           atomic_load_explicit(&balancer_task.next_fault, memory_order_relaxed) != FAULT_NONE;
}

static proxy_worker *find(proxy_balancer *balancer, request_rec *r)
{
    proxy_worker **workers = (proxy_worker **)balancer->workers->elts, *found = NULL;
    int n = balancer->workers->nelts < MOST_WORKERS ? balancer->workers->nelts : MOST_WORKERS;
    struct balancer_state *state = state_of(balancer);
    if (!state || n == 0)
        return NULL;
    state->signature = scan_workers(workers, n, r);
    if (state->future)
        collect(state, n);
    if (!state->future && balancer_task.orbit && (settings.wait || needs_schedule(state)))
        order(state, workers, n);
    if (state->future && (settings.wait || !state->has_waited)) {
        orbit_future_wait_timeout(state->future, settings.wait ? UINT64_MAX : FIRST_WAIT_US, NULL);
        collect(state, n);
    }
    state->has_waited = true;
    found = next_decision(state, workers, n);
    if (found) {
        atomic_fetch_add(state->is_repeated ? &balancer_counters.repeated : &balancer_counters.ahead, 1);
    } else if ((found = rotate(state, workers, n)) != NULL) {
        atomic_fetch_add(&balancer_counters.rotated, 1);
    }
    if (found)
        keep_books(workers, n, found);
    return found;
}

/* When the balancer's settings were changed by its manager. */
static apr_status_t reset(proxy_balancer *balancer, server_rec *server)
{
    proxy_worker **workers = (proxy_worker **)balancer->workers->elts;
    struct balancer_state *state = balancer->context;
    (void)server;
    for (int i = 0; i < balancer->workers->nelts; i++)
        workers[i]->s->lbstatus = 0;
    if (state)
        state->count = state->used = 0;
    return APR_SUCCESS;
}

static apr_status_t age(proxy_balancer *balancer, server_rec *server)
{
    (void)balancer, (void)server;
    return APR_SUCCESS;
}

static apr_status_t update_status(proxy_balancer *balancer, proxy_worker *elected, server_rec *server)
{
    (void)balancer, (void)elected, (void)server;
    return APR_SUCCESS;
}

static const proxy_balancer_method method = {"orbit", find, NULL, reset, age, update_status};

void balancer_register(apr_pool_t *pool)
{
    ap_register_provider(pool, PROXY_LBMETHOD, "orbit", "0", &method);
}

static bool is_used(server_rec *server)
{
    const module *proxy = ap_find_linked_module("mod_proxy.c");
    for (; proxy && server; server = server->next) {
        const proxy_server_conf *conf = ap_get_module_config(server->module_config, proxy);
        for (int i = 0; i < conf->balancers->nelts; i++)
            if (((proxy_balancer *)conf->balancers->elts)[i].lbmethod == &method)
                return true;
    }
    return false;
}

void balancer_child_init(apr_pool_t *pool, server_rec *server)
{
    (void)pool;
    retry_worker = APR_RETRIEVE_OPTIONAL_FN(ap_proxy_retry_worker);
    if (!is_used(server) || !task_start(&balancer_task, "orbit-balancer", schedule_task, NULL))
        return;
    area = orbit_area_create(1 << 16, NULL);
    if (!area)
        ap_log_error(APLOG_MARK, APLOG_ERR, 0, server, "orbit-balancer: %s; workers take turns", orbit_last_error());
}
