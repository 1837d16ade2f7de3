/* How ports describe the process of their task, all in the same way: it has a limit of memory, and
 * hands back data only. */
#ifndef ORBIT_APPS_TASK_H
#define ORBIT_APPS_TASK_H

#include <orbit.h>

/* options points to limits: stays where it is. A port sets further options before it makes the
 * orbit. */
struct task_process {
    struct orbit_options options;
    struct orbit_limits limits;
};

/* Memory in bytes; 0: no limit. */
static inline struct orbit_limits task_limits(uint64_t memory)
{
    struct orbit_limits limits = ORBIT_LIMITS_INIT;
    limits.memory = memory;
    return limits;
}

static inline void task_describe(struct task_process *task, const char *name, orbit_entry entry, uint64_t memory)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    task->limits = task_limits(memory);
    options.name = name;
    options.entry = entry;
    options.limits = &task->limits;
    options.flags = ORBIT_DATA_ONLY;
    task->options = options;
}

#endif
