/* mod_orbit: settings, hooks, set-up of a child. */
#define ORBIT_DECLARES_MODULE
#include "module.h"
#include "task.h"

#include "apr_strings.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULTS {.deadline_ms = 1000, .memory_mb = 64, .ahead = 256, .lock_limit_ms = 60000}
struct settings settings = DEFAULTS;
struct task_state balancer_task, watchdog_task;

static server_rec *main_server;

/* ---- orbits ---- */

bool task_start(struct task_state *task, const char *name, orbit_entry entry, void *(*init)(void))
{
    struct task_process process;
    task_describe(&process, name, entry, (uint64_t)settings.memory_mb << 20);
    process.options.init = init;
    process.options.deadline_us = (uint64_t)settings.deadline_ms * 1000;
    process.options.log_size = 1 << 18;
    task->name = name;
    task->orbit = orbit_create_with(&process.options);
    if (!task->orbit)
        ap_log_error(APLOG_MARK, APLOG_ERR, 0, main_server, "%s: no orbit: %s", name, orbit_last_error());
    return task->orbit != NULL;
}

/* The first line is a sentence; what follows is the call stack, a frame a line. */
void task_failed(struct task_state *task, const struct orbit_outcome *outcome)
{
    const char *line = outcome->text;
    int level = APLOG_ERR;
    atomic_fetch_add(&task->failed, 1);
    while (*line) {
        int length = (int)strcspn(line, "\n");
        ap_log_error(APLOG_MARK, level, 0, main_server, "%s: %.*s", task->name, length, line);
        line += length + (line[length] == '\n');
    }
}

/* Runs as the child ends, with its threads joined or about to be killed by exit(). */
static apr_status_t end_orbits(void *unused)
{
    (void)unused;
    orbit_shutdown();
    return APR_SUCCESS;
}

/* In a child, with the rights of User and Group, before it has threads of its own. */
static void child_init(apr_pool_t *pool, server_rec *server)
{
    struct orbit_config config = ORBIT_CONFIG_INIT;
    main_server = server;
    /* A child is small and has at most two orbits: a spare process each would be more than it
     * saves. */
    config.spares = 0;
    config.window = (size_t)1 << 30;
    /* The scoreboard and the workers' shared memory belong to all children. */
    config.shared_memory = ORBIT_SHARED_ABSENT;
    if (orbit_init_with(&config) < 0) {
        ap_log_error(APLOG_MARK, APLOG_ERR, 0, server, "orbit: %s", orbit_last_error());
        return;
    }
    apr_pool_cleanup_register(pool, NULL, end_orbits, apr_pool_cleanup_null);
    balancer_child_init(pool, server);
    watchdog_child_init(pool, server);
}

/* ---- settings ---- */

static const char *set_number(cmd_parms *cmd, int *setting, const char *text, int least, int most)
{
    char *end;
    long value = strtol(text, &end, 10);
    const char *error = ap_check_cmd_context(cmd, GLOBAL_ONLY);
    if (error)
        return error;
    if (*end || end == text || value < least || value > most)
        return apr_psprintf(cmd->pool, "%s takes a number from %d to %d, not \"%s\"", cmd->cmd->name, least, most,
                            text);
    *setting = (int)value;
    return NULL;
}

static const char *set_deadline(cmd_parms *cmd, void *unused, const char *text)
{
    (void)unused;
    return set_number(cmd, &settings.deadline_ms, text, 1, 600000);
}

static const char *set_memory(cmd_parms *cmd, void *unused, const char *text)
{
    (void)unused;
    return set_number(cmd, &settings.memory_mb, text, 4, 1 << 20);
}

static const char *set_ahead(cmd_parms *cmd, void *unused, const char *text)
{
    (void)unused;
    return set_number(cmd, &settings.ahead, text, 2, MOST_AHEAD);
}

static const char *set_lock_limit(cmd_parms *cmd, void *unused, const char *text)
{
    (void)unused;
    return set_number(cmd, &settings.lock_limit_ms, text, 0, INT_MAX);
}

static const char *set_faults(cmd_parms *cmd, void *unused, int on)
{
    const char *error = ap_check_cmd_context(cmd, GLOBAL_ONLY);
    (void)unused;
    settings.faults = on != 0;
    return error;
}

static const char *set_wait(cmd_parms *cmd, void *unused, int on)
{
    const char *error = ap_check_cmd_context(cmd, GLOBAL_ONLY);
    (void)unused;
    settings.wait = on != 0;
    return error;
}

static const command_rec commands[] = {
    AP_INIT_TAKE1("OrbitDeadline", set_deadline, NULL, RSRC_CONF, "Longest run of a task, milliseconds (1000)"),
    AP_INIT_TAKE1("OrbitMemory", set_memory, NULL, RSRC_CONF, "Memory of a task's process, megabytes (64)"),
    AP_INIT_TAKE1("OrbitAhead", set_ahead, NULL, RSRC_CONF, "Decisions that the balancer makes ahead (256)"),
    AP_INIT_TAKE1("OrbitLockLimit", set_lock_limit, NULL, RSRC_CONF,
                  "A lock that a thread holds for longer is reported, milliseconds (60000); 0: no watchdog"),
    AP_INIT_FLAG("OrbitFaults", set_faults, NULL, RSRC_CONF, "Whether the status page takes orders for faults (Off)"),
    AP_INIT_FLAG("OrbitWait", set_wait, NULL, RSRC_CONF,
                 "Has each proxied request wait for a decision of its own (Off); for comparison"),
    {NULL},
};

/* Settings of an earlier reading of the files do not last. */
static int reset_settings(apr_pool_t *pool, apr_pool_t *log, apr_pool_t *temporary)
{
    (void)pool, (void)log, (void)temporary;
    settings = (struct settings)DEFAULTS;
    return OK;
}

static void register_hooks(apr_pool_t *pool)
{
    ap_hook_pre_config(reset_settings, NULL, NULL, APR_HOOK_MIDDLE);
    ap_hook_child_init(child_init, NULL, NULL, APR_HOOK_MIDDLE);
    ap_hook_handler(status_handler, NULL, NULL, APR_HOOK_MIDDLE);
    balancer_register(pool);
}

AP_DECLARE_MODULE(orbit) = {STANDARD20_MODULE_STUFF, NULL, NULL, NULL, NULL, commands, register_hooks, 0};
