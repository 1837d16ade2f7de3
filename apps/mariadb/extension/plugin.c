/* orbit_deadlock: declaration of the plugin, its variables, and the life of its thread.
 *
 * The thread scans the waits when new ones begin, has the task search them, and ends the wait of
 * each victim. A cycle closes only when a wait begins: while the waits are those of the last
 * completed call there is nothing to search.
 */
#include "plugin.h"

#include <mysql/plugin.h>
#include <mysql/plugin_audit.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern void sql_print_error(const char *format, ...) __asm__("_Z15sql_print_errorPKcz");
extern void sql_print_information(const char *format, ...) __asm__("_Z21sql_print_informationPKcz");
extern char my_thread_init(void);
extern void my_thread_end(void);

/* A scan is followed by a pause so many times as long at least: scans take 5 % of the time at
 * most. */
#define PAUSE_SHARE 19
/* Least time between two scans, milliseconds, where InnoDB cannot be made to renew what it
 * shows. */
#define RENEWAL_MS 120

unsigned int setting_interval, setting_deadline, setting_memory;
static char setting_faults;
static char *setting_fault;
struct plugin_counters counters;

static pthread_t thread;
static bool is_renewed; /* what InnoDB shows, at each scan */
static atomic_int next_fault;

void log_event(bool is_error, const char *format, ...)
{
    char text[1200];
    va_list rest;
    va_start(rest, format);
    vsnprintf(text, sizeof text, format, rest);
    va_end(rest);
    (is_error ? sql_print_error : sql_print_information)("orbit_deadlock: %s", text);
}

int32_t take_fault(void)
{
    return atomic_exchange(&next_fault, FAULT_NONE);
}

void return_fault(int32_t fault)
{
    int none = FAULT_NONE;
    atomic_compare_exchange_strong(&next_fault, &none, fault);
}

/* Whether a call shall be made for its fault: not for one that takes a deadlock. */
static bool is_fault_due(void)
{
    int fault = atomic_load(&next_fault);
    return fault != FAULT_NONE && fault != FAULT_ASSERT;
}

/* ---- the thread ---- */

/* A victim of the last search still waits: the next scan must search again. */
static bool is_left;

static void end_victim(const struct scan *scan, const struct cycle *cycle)
{
    const struct transaction *victim = &graph_transactions(scan->graph)[cycle->victim];
    if (!scan_end_wait(scan, cycle->victim)) {
        is_left = true;
        return;
    }
    counters.broken++;
    log_event(false, "deadlock of %d transactions: %llu is rolled back (thread %lu, weight %llu)", cycle->length,
              (unsigned long long)victim->id, scan->sessions[cycle->victim].thread, (unsigned long long)victim->weight);
}

/* When the next scan may begin, after one from this time until now. */
static uint64_t next_due_us(uint64_t began_us)
{
    uint64_t ended_us = now_us(), pause_us = (ended_us - began_us) * PAUSE_SHARE;
    uint64_t least_us = 1000u * (is_renewed || setting_interval > RENEWAL_MS ? setting_interval : RENEWAL_MS);
    return ended_us + (pause_us > least_us ? pause_us : least_us);
}

static void detect(void)
{
    uint64_t searched = 0, seen = 0, due_us = 0;
    while (!waits_are_stopped()) {
        bool may_be_deadlocked = waits_await(due_us, &seen), has_fault = is_fault_due();
        struct graph nothing = {0};
        struct scan scan = {0};
        calls_note_pid();
        if (may_be_deadlocked || has_fault) {
            uint64_t began_us = now_us();
            if (!scan_waits(&scan))
                seen = searched = 0;
            due_us = next_due_us(began_us);
        }
        if (scan.graph && (scan.signature != searched || has_fault)) {
            is_left = false;
            searched = calls_search(&scan, end_victim) && !is_left ? scan.signature : 0;
            if (searched == 0)
                seen = 0;
        } else if (!scan.graph && has_fault) {
            struct scan empty = {.graph = &nothing, .size = sizeof nothing};
            calls_search(&empty, end_victim);
        }
        scan_free(&scan);
    }
}

static void *run(void *unused)
{
    bool connected = false, ready;
    (void)unused;
    my_thread_init();
    /* Plugins are loaded before the server takes connections, and before InnoDB. */
    do {
        connected = connected || scan_connect();
        ready = connected && scan_take_over();
    } while (!ready && usleep(100000) == 0 && !waits_are_stopped());
    if (ready) {
        is_renewed = clock_start();
        if (!is_renewed)
            log_event(true, "the server's clock is not reached: scans are %d ms apart at least", RENEWAL_MS);
        log_event(false, "ready; innodb_deadlock_detect is OFF while this plugin is loaded");
        detect();
        scan_hand_back();
        clock_stop();
    }
    scan_disconnect();
    my_thread_end();
    return NULL;
}

static int start_thread(void)
{
    sigset_t all, before;
    int error;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static int init(void *unused)
{
    (void)unused;
    if (!calls_start())
        return 1;
    waits_start();
    if (start_thread() == 0)
        return 0;
    waits_stop();
    calls_stop();
    return 1;
}

static int deinit(void *unused)
{
    (void)unused;
    waits_wake(true);
    /* A task that hangs must not delay the server's end until its deadline. */
    calls_interrupt();
    pthread_join(thread, NULL);
    waits_stop();
    calls_stop();
    return 0;
}

/* ---- variables ---- */

static int check_fault(MYSQL_THD thd, struct st_mysql_sys_var *variable, void *save, struct st_mysql_value *value)
{
    char buffer[32];
    int length = sizeof buffer;
    const char *name = value->val_str(value, buffer, &length);
    (void)thd, (void)variable;
    *(const char **)save = name;
    return !name || !setting_faults || fault_by_name(name, "assert") == FAULT_NONE;
}

static void order_fault(MYSQL_THD thd, struct st_mysql_sys_var *variable, void *target, const void *save)
{
    (void)thd, (void)variable, (void)target;
    atomic_store(&next_fault, fault_by_name(*(const char *const *)save, "assert"));
    waits_wake(false);
}

static MYSQL_SYSVAR_UINT(interval, setting_interval, PLUGIN_VAR_RQCMDARG,
                         "Least time between two scans of the waits, milliseconds", NULL, NULL, 2, 1, 60000, 0);
static MYSQL_SYSVAR_UINT(deadline, setting_deadline, PLUGIN_VAR_RQCMDARG,
                         "Longest run of the detector, milliseconds; then its process is killed and started again",
                         NULL, NULL, 1000, 1, 600000, 0);
static MYSQL_SYSVAR_UINT(memory, setting_memory, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY,
                         "Memory of the detector's process, megabytes", NULL, NULL, 64, 4, 1 << 20, 0);
static MYSQL_SYSVAR_BOOL(faults, setting_faults, PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_READONLY,
                         "Whether orbit_deadlock_fault may be set", NULL, NULL, 0);
static MYSQL_SYSVAR_STR(fault, setting_fault, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_NOCMDOPT,
                        "The next run does this harm: segv, hang, memory, recursion, kill, assert, lie", check_fault,
                        order_fault, NULL);

static struct st_mysql_sys_var *variables[] = {MYSQL_SYSVAR(interval), MYSQL_SYSVAR(deadline), MYSQL_SYSVAR(memory),
                                               MYSQL_SYSVAR(faults), MYSQL_SYSVAR(fault), NULL};

static struct st_mysql_show_var status[] = {
    {"orbit_deadlock_pid", &counters.orbit_pid, SHOW_SLONGLONG},
    {"orbit_deadlock_scans", &counters.scans, SHOW_ULONGLONG},
    {"orbit_deadlock_calls", &counters.calls, SHOW_ULONGLONG},
    {"orbit_deadlock_failed", &counters.failed, SHOW_ULONGLONG},
    {"orbit_deadlock_broken", &counters.broken, SHOW_ULONGLONG},
    {"orbit_deadlock_refuted", &counters.refuted, SHOW_ULONGLONG},
    {"orbit_deadlock_call_us", &counters.call_us, SHOW_ULONGLONG},
    {"orbit_deadlock_snapshot_bytes", &counters.snapshot_bytes, SHOW_ULONGLONG},
    {NULL, NULL, SHOW_UNDEF},
};

static struct st_mysql_daemon daemon_info = {MYSQL_DAEMON_INTERFACE_VERSION};

#define EXPORTED __attribute__((visibility("default")))
extern EXPORTED int _maria_plugin_interface_version_;
extern EXPORTED int _maria_sizeof_struct_st_plugin_;
extern EXPORTED struct st_maria_plugin _maria_plugin_declarations_[];

maria_declare_plugin(orbit_deadlock)
{
    MYSQL_DAEMON_PLUGIN, &daemon_info, "orbit_deadlock", "orbit", "InnoDB's deadlock detector in an orbit",
        PLUGIN_LICENSE_BSD, init, deinit, 0x0100, status, variables, "1.0", MariaDB_PLUGIN_MATURITY_GAMMA
},
{
    MYSQL_AUDIT_PLUGIN, &victims_audit, "orbit_deadlock_victims", "orbit", "Error and rollback of a deadlock's victim",
        PLUGIN_LICENSE_BSD, NULL, NULL, 0x0100, NULL, NULL, "1.0", MariaDB_PLUGIN_MATURITY_GAMMA
}
maria_declare_plugin_end;
