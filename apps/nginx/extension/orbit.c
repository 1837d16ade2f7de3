/* The orbit of this worker, and calls of it from the event loop.
 *
 * The worker never blocks. The task pushes its result and signals a descriptor, which is one of
 * nginx' connections; so its call has ended for the worker, whatever becomes of the process in the
 * instructions after that. A timer finds calls whose task could not. (A descriptor of each future
 * would cost four system calls and a thread's wake-up.) The orbit has one call at a time, so that a
 * deadline is the running call's alone: a call that was in the orbit is never made again, since
 * it may have stored its file. The others wait here, also while the orbit is started again.
 */
#include "dav.h"
#include "task.h"

#include <sys/eventfd.h>

/* Between two tries to make a call, milliseconds. */
#define RETRY_MS 5
/* Between two checks whether the running call has ended, milliseconds. */
#define CHECK_MS 10
struct put_call {
    ngx_queue_t link; /* in waiting; not the one that runs */
    struct orbit_future *future;
    ngx_msec_t deadline;
    ngx_msec_t give_up; /* if it could not be made by then, by ngx_current_msec; 0: its turn has not come */
    put_done done; /* NULL: abandoned */
    put_log log;
    void *data;
    size_t args_size;
    struct put_args args;
};

int put_done_fd = -1;

static struct orbit *orbit;
static ngx_queue_t waiting;
static struct put_call *running;
static ngx_connection_t *signals; /* of put_done_fd */
static ngx_event_t retry, check;
static ngx_connection_t timer_connection;

static void make_calls(void);

static void on_retry(ngx_event_t *event)
{
    make_calls();
}

static void on_check(ngx_event_t *event);
static void on_signal(ngx_event_t *event);

static void init_timer(ngx_event_t *timer, ngx_event_handler_pt handler, ngx_log_t *log)
{
    ngx_memzero(timer, sizeof *timer);
    timer->handler = handler;
    timer->data = &timer_connection;
    timer->log = log;
}

ngx_int_t dav_orbit_start(ngx_cycle_t *cycle, const dav_main_conf *conf)
{
    struct orbit_config config = ORBIT_CONFIG_INIT;
    struct task_process task;
    /* No areas: a call has all in its arguments. */
    config.window = 16 << 20;
    task_describe(&task, "nginx-put", put_task, conf->memory);
    task.options.init = put_init;
    task.options.pass_fds = &put_done_fd;
    task.options.pass_fd_count = 1;
    task.options.pending = ORBIT_PENDING_KEEP;
    task.options.when_full = ORBIT_FULL_FAIL;
    task.options.down_wait_us = 1;
    /* Template and orbit are copies of this process, and have its title. */
    if (ngx_process == NGX_PROCESS_WORKER)
        ngx_setproctitle("template of orbits");
    orbit = NULL;
    if (put_done_fd < 0)
        put_done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (put_done_fd < 0 || orbit_init_with(&config) < 0 || !(orbit = orbit_create_with(&task.options))) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, 0, "orbit_dav: could not set up the process for PUT: %s",
                      put_done_fd < 0 ? strerror(errno) : orbit_last_error());
        orbit_shutdown();
    }
    if (ngx_process == NGX_PROCESS_WORKER)
        ngx_setproctitle("worker process");
    if (!orbit)
        return NGX_ERROR;
    ngx_queue_init(&waiting);
    running = NULL;
    timer_connection.fd = (ngx_socket_t)-1;
    init_timer(&retry, on_retry, cycle->log);
    init_timer(&check, on_check, cycle->log);
    return NGX_OK;
}

ngx_int_t dav_orbit_is_up(void)
{
    return orbit != NULL;
}

void dav_orbit_stop(void)
{
    if (orbit)
        orbit_shutdown();
    orbit = NULL;
    if (signals) {
        if (signals->read->active)
            ngx_del_event(signals->read, NGX_READ_EVENT, 0);
        ngx_free_connection(signals);
        signals->fd = (ngx_socket_t)-1;
        signals = NULL;
    }
    if (put_done_fd >= 0)
        close(put_done_fd);
    put_done_fd = -1;
}

/* ---- ends ---- */

/* Takes what the task has pushed: lines go to the log, its status is returned; -1: it is not there
 * yet. */
static ngx_int_t take_pushed(struct put_call *call)
{
    struct orbit_update *update;
    ngx_int_t status = -1;
    while (status < 0 && orbit_try_pull(call->future, &update) == 1) {
        const struct orbit_item *item = orbit_update_first(update);
        const size_t header = offsetof(struct log_line, text);
        size_t size = item && item->kind == ORBIT_ITEM_DATA ? item->size : 0;
        union {
            struct log_line line;
            struct put_end end;
        } is;
        if (size >= header && size <= sizeof is.line) {
            ngx_memcpy(&is, item->data, size);
            if (is.line.level == 0 && size == sizeof is.end)
                status = (ngx_int_t)is.end.status;
            else if (call->done && is.line.size <= size - header && is.line.level >= NGX_LOG_EMERG &&
                     is.line.level <= NGX_LOG_NOTICE)
                call->log(call->data, is.line.level, (u_char *)is.line.text, is.line.size);
        }
        orbit_update_free(update);
    }
    return status;
}

static void leave_orbit(struct put_call *call)
{
    if (check.timer_set)
        ngx_del_timer(&check);
    orbit_future_free(call->future);
    call->future = NULL;
    running = NULL;
}

static void finish(struct put_call *call, ngx_int_t status, const char *failure)
{
    put_done done = call->done;
    void *data = call->data;
    ngx_free(call);
    if (done)
        done(data, status, failure);
}

static ngx_int_t is_status_of_put(ngx_int_t status)
{
    return status == NGX_HTTP_CREATED || status == NGX_HTTP_NO_CONTENT || status == NGX_HTTP_CONFLICT ||
           status == NGX_HTTP_INTERNAL_SERVER_ERROR;
}

/* Takes the running call's end, if it has ended. */
static void settle(void)
{
    struct put_call *call = running;
    struct orbit_outcome outcome;
    ngx_int_t status;
    int error;
    if (!call)
        return;
    /* In this order: a task that has ended by now has pushed before. */
    error = orbit_future_poll(call->future, &outcome);
    status = take_pushed(call);
    if (status < 0 && error == -EINPROGRESS) {
        if (!check.timer_set)
            ngx_add_timer(&check, CHECK_MS);
        return;
    }
    leave_orbit(call);
    if (status < 0 && error < 0 && outcome.kind == ORBIT_CANCELLED && call->done) {
        /* It never began. */
        ngx_queue_insert_head(&waiting, &call->link);
        make_calls();
        return;
    }
    /* The orbit has the next one while this one's client is answered. */
    make_calls();
    if (status < 0 && error < 0)
        finish(call, NGX_HTTP_INTERNAL_SERVER_ERROR, outcome.text);
    else if (is_status_of_put(status))
        finish(call, status, NULL);
    else
        finish(call, NGX_HTTP_INTERNAL_SERVER_ERROR, "the task returned a status that PUT does not have");
}

static void on_check(ngx_event_t *event)
{
    settle();
}

static void on_signal(ngx_event_t *event)
{
    uint64_t count;
    if (read(put_done_fd, &count, sizeof count) == sizeof count)
        settle();
}

/* ---- calls ---- */

static ngx_int_t watch_signals(void)
{
    if (signals)
        return NGX_OK;
    signals = ngx_get_connection(put_done_fd, ngx_cycle->log);
    if (!signals)
        return NGX_ERROR;
    signals->read->handler = on_signal;
    signals->read->log = ngx_cycle->log;
    /* Not a client's: nginx does not report it as left open. */
    signals->read->channel = 1;
    return ngx_add_event(signals->read, NGX_READ_EVENT, 0);
}

/* NGX_OK: made. NGX_AGAIN: later. NGX_ERROR: not at all. */
static ngx_int_t make_call(struct put_call *call)
{
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    if (watch_signals() != NGX_OK)
        return NGX_ERROR;
    options.deadline_us = (uint64_t)call->deadline * 1000;
    call->future = orbit_call_async_with(orbit, 0, NULL, &call->args, call->args_size, &options);
    if (!call->future)
        return errno == ENOSPC || errno == EHOSTDOWN || errno == EAGAIN || errno == ETIMEDOUT ? NGX_AGAIN : NGX_ERROR;
    ngx_queue_remove(&call->link);
    running = call;
    /* A worker that is to quit waits for its timers. */
    ngx_add_timer(&check, CHECK_MS);
    return NGX_OK;
}

static void make_calls(void)
{
    while (!running && !ngx_queue_empty(&waiting)) {
        struct put_call *call = ngx_queue_data(ngx_queue_head(&waiting), struct put_call, link);
        ngx_int_t made = make_call(call);
        if (call->give_up == 0)
            call->give_up = ngx_current_msec + call->deadline;
        if (made == NGX_AGAIN && (ngx_msec_int_t)(call->give_up - ngx_current_msec) > 0 && call->done) {
            if (!retry.timer_set)
                ngx_add_timer(&retry, RETRY_MS);
            return;
        }
        if (made == NGX_OK)
            continue;
        ngx_queue_remove(&call->link);
        finish(call, NGX_HTTP_SERVICE_UNAVAILABLE,
               signals ? orbit_last_error() : "its end cannot be watched: raise worker_connections");
    }
}

struct put_call *put_call_start(const struct put_args *args, size_t args_size, ngx_msec_t deadline, put_done done,
                                put_log log, void *data)
{
    struct put_call *call = ngx_alloc(sizeof *call + args_size, ngx_cycle->log);
    if (!call)
        return NULL;
    ngx_memzero(call, sizeof *call);
    call->deadline = deadline;
    call->done = done;
    call->log = log;
    call->data = data;
    call->args_size = args_size;
    ngx_memcpy(&call->args, args, args_size);
    ngx_queue_insert_tail(&waiting, &call->link);
    ngx_post_event(&retry, &ngx_posted_events);
    return call;
}

void put_call_abandon(struct put_call *call)
{
    call->done = NULL;
}
