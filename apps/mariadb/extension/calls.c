/* The orbit and its calls. All but calls_interrupt is called by the plugin's thread. */
#include "plugin.h"
#include "task.h"

#include <orbit.h>
#include <stdlib.h>
#include <string.h>

static struct orbit *orbit;
static struct orbit_area *area;
static void *in_area; /* the packed graph, for the task */
static volatile bool is_interrupted;

bool calls_start(void)
{
    struct orbit_config config = ORBIT_CONFIG_INIT;
    struct task_process task;
    config.spares = 0;
    config.window = (size_t)1 << 30;
    config.shared_memory = ORBIT_SHARED_ABSENT;
    task_describe(&task, "orbit-deadlock", search_task, (uint64_t)setting_memory << 20);
    is_interrupted = false;
    if (orbit_init_with(&config) < 0 || !(orbit = orbit_create_with(&task.options)) ||
        !(area = orbit_area_create(1 << 20, NULL))) {
        log_event(true, "no orbit: %s", orbit_last_error());
        return false;
    }
    return true;
}

void calls_stop(void)
{
    orbit_shutdown();
    orbit_destroy(orbit);
    orbit_area_destroy(area);
    orbit = NULL;
    area = NULL;
    in_area = NULL;
}

void calls_interrupt(void)
{
    is_interrupted = true;
    if (orbit)
        orbit_kill(orbit);
}

void calls_note_pid(void)
{
    struct orbit_counters now;
    counters.orbit_pid = orbit && orbit_stats(orbit, &now) == 0 ? now.pid : 0;
}

/* The sentence, then the call stack, a frame a line. */
static void log_failure(const char *line)
{
    while (*line) {
        int length = (int)strcspn(line, "\n");
        log_event(true, "a run of the detector failed: %.*s", length, line);
        line += length + (line[length] == '\n');
    }
}

static bool copy_into_area(const struct scan *scan)
{
    if (orbit_usable_size(in_area) < scan->size) {
        orbit_free(in_area);
        in_area = orbit_alloc(area, scan->size * 2 > 4096 ? scan->size * 2 : 4096);
    }
    if (in_area)
        memcpy(in_area, scan->graph, scan->size);
    return in_area != NULL;
}

static bool has_wait(const struct graph *graph, int32_t waiter, int32_t holder)
{
    const struct wait *waits = graph_waits(graph);
    for (int32_t i = 0; i < graph->wait_count; i++)
        if (waits[i].waiter == waiter && waits[i].holder == holder)
            return true;
    return false;
}

/* Whether these bytes of the task are a cycle of the graph as it was read from the server. */
static bool is_proven(const struct graph *graph, const struct cycle *cycle, size_t size)
{
    bool has_victim = false;
    if (size < sizeof *cycle || cycle->length < 2 || cycle->length > graph->transaction_count ||
        size != sizeof *cycle + (size_t)cycle->length * sizeof(int32_t))
        return false;
    for (int32_t i = 0; i < cycle->length; i++) {
        int32_t from = cycle->members[i], to = cycle->members[(i + 1) % cycle->length];
        if (from < 0 || from >= graph->transaction_count || !has_wait(graph, from, to))
            return false;
        has_victim |= from == cycle->victim;
    }
    return has_victim;
}

static void take_cycles(const struct scan *scan, void (*found)(const struct scan *, const struct cycle *))
{
    struct orbit_update *update;
    while (orbit_pull(orbit, &update) == 1) {
        const struct orbit_item *item = orbit_update_first(update);
        size_t size = item && item->kind == ORBIT_ITEM_DATA ? item->size : 0;
        /* A copy: it need not be aligned where it is. */
        struct cycle *cycle = calloc(1, size + sizeof *cycle);
        if (cycle && size > 0)
            memcpy(cycle, item->data, size);
        if (cycle && is_proven(scan->graph, cycle, size))
            found(scan, cycle);
        else
            counters.refuted++;
        free(cycle);
        orbit_update_free(update);
    }
}

bool calls_search(const struct scan *scan, void (*found)(const struct scan *, const struct cycle *))
{
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    struct search_args args = {0};
    struct orbit_outcome outcome;
    unsigned long long began = now_us();
    int error;
    if (!copy_into_area(scan)) {
        log_event(true, "no room for %zu bytes of waits: %s", scan->size, orbit_last_error());
        return false;
    }
    options.deadline_us = (uint64_t)setting_deadline * 1000;
    args.graph = in_area;
    args.fault = take_fault();
    error = orbit_call_with(orbit, 1, &area, &args, sizeof args, &options, &outcome);
    counters.calls++;
    counters.call_us = now_us() - began;
    counters.snapshot_bytes = scan->size;
    take_cycles(scan, found);
    if (error == 0 && args.fault == FAULT_ASSERT)
        return_fault(args.fault);
    if (error == 0 && outcome.value == 0)
        return true;
    counters.failed++;
    if (!is_interrupted)
        log_failure(error == 0 ? "not enough memory for this many waits: raise orbit_deadlock_memory"
                               : outcome.kind == ORBIT_PENDING ? orbit_last_error() : outcome.text);
    return false;
}
