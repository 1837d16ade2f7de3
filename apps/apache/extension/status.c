/* The status page (SetHandler orbit-status): counters of the child that answers, and with
 * OrbitFaults On orders for faults:
 *
 *   ?fault=balancer:segv   the next call of this task does this harm (see fault.c)
 *   ?hold=5000             this request holds a mutex for so many milliseconds
 */
#include "module.h"

#include "apr_thread_mutex.h"
#include "http_protocol.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *parameter(request_rec *r, const char *name)
{
    size_t length = strlen(name);
    const char *args = r->args;
    return args && strncmp(args, name, length) == 0 && args[length] == '=' ? args + length + 1 : NULL;
}

static int order_fault(const char *words)
{
    const char *colon = strchr(words, ':');
    int32_t fault = colon ? fault_by_name(colon + 1, "redirect") : FAULT_NONE;
    struct task_state *task = strncmp(words, "balancer:", 9) == 0 ? &balancer_task : &watchdog_task;
    if (fault == FAULT_NONE || !task->orbit)
        return HTTP_BAD_REQUEST;
    atomic_store(&task->next_fault, fault);
    return OK;
}

static __attribute__((noinline)) void hold_a_lock(apr_thread_mutex_t *mutex, apr_interval_time_t time)
{
    apr_thread_mutex_lock(mutex);
    apr_sleep(time);
    apr_thread_mutex_unlock(mutex);
}

static int order(request_rec *r)
{
    static apr_thread_mutex_t *held;
    const char *fault = parameter(r, "fault"), *hold = parameter(r, "hold");
    if (!fault && !hold)
        return OK;
    if (!settings.faults)
        return HTTP_FORBIDDEN;
    if (fault)
        return order_fault(fault);
    if (!held && apr_thread_mutex_create(&held, APR_THREAD_MUTEX_DEFAULT, r->server->process->pool) != APR_SUCCESS)
        return HTTP_INTERNAL_SERVER_ERROR;
    hold_a_lock(held, apr_time_from_msec(atoi(hold)));
    return OK;
}

static void print(request_rec *r, const char *prefix, const char *name, uint64_t value)
{
    ap_rprintf(r, "%s%s:%" APR_UINT64_T_FMT "\n", prefix, name, (apr_uint64_t)value);
}

static void print_task(request_rec *r, const char *prefix, struct task_state *task)
{
    struct orbit_counters counters = {0};
    if (task->orbit)
        orbit_stats(task->orbit, &counters);
    print(r, prefix, "orbit_pid", (uint64_t)counters.pid);
    print(r, prefix, "calls", atomic_load(&task->calls));
    print(r, prefix, "failed", atomic_load(&task->failed));
    print(r, prefix, "pages", counters.pages);
}

int status_handler(request_rec *r)
{
    int refused;
    if (!r->handler || strcmp(r->handler, "orbit-status") != 0)
        return DECLINED;
    refused = order(r);
    if (refused != OK)
        return refused;
    ap_set_content_type(r, "text/plain");
    print(r, "", "child_pid", (uint64_t)getpid());
    print_task(r, "balancer_", &balancer_task);
    print(r, "", "ahead", atomic_load(&balancer_counters.ahead));
    print(r, "", "repeated", atomic_load(&balancer_counters.repeated));
    print(r, "", "rotated", atomic_load(&balancer_counters.rotated));
    print(r, "", "refuted", atomic_load(&balancer_counters.refuted));
    print_task(r, "watchdog_", &watchdog_task);
    print(r, "", "reports", atomic_load(&watchdog_reports));
    return OK;
}
