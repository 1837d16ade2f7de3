/* orbit_deadlock: declaration of the plugin, its variables, and the life of its thread.
 *
 * The thread scans the waits at intervals, has the task search what is new, and ends the wait of
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
#include <time.h>

extern void sql_print_error(const char *format, ...) __asm__("_Z15sql_print_errorPKcz");
extern void sql_print_information(const char *format, ...) __asm__("_Z21sql_print_informationPKcz");
extern char my_thread_init(void);
extern void my_thread_end(void);

/* Time between two readings of the number of waits, milliseconds: a deadlock that comes alone is
 * found after so much. */
#define CHECK_MS 20
/* A scan is followed by a pause so many times as long at least: scans take 5 % of the time at
 * most. */
#define PAUSE_SHARE 19

unsigned int setting_interval, setting_deadline, setting_memory;
static char setting_faults;
static char *setting_fault;
struct plugin_counters counters;

static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stopped = PTHREAD_COND_INITIALIZER;
static bool is_stopping;
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

/* Waits; true: it is time to end. */
static bool sleep_ms(unsigned int ms)
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

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void end_victim(const struct scan *scan, const struct cycle *cycle)
{
    const struct transaction *victim = &graph_transactions(scan->graph)[cycle->victim];
    if (!scan_end_wait(scan, cycle->victim))
        return;
    counters.broken++;
    log_event(false, "deadlock of %d transactions: %llu is rolled back (thread %lu, weight %llu)", cycle->length,
              (unsigned long long)victim->id, scan->sessions[cycle->victim].thread, (unsigned long long)victim->weight);
}

static void detect(void)
{
    uint64_t searched = 0, due_ms = 0;
    while (!sleep_ms(CHECK_MS)) {
        unsigned long long scans = counters.scans;
        uint64_t began_ms = now_ms();
        struct scan scan;
        bool has_fault = is_fault_due();
        static struct graph nothing;
        calls_note_pid();
        if (!has_fault && began_ms < due_ms)
            continue;
        if (!scan_waits(&scan))
            continue;
        if (counters.scans != scans) {
            uint64_t ended_ms = now_ms(), pause_ms = (ended_ms - began_ms) * PAUSE_SHARE;
            due_ms = ended_ms + (pause_ms > setting_interval ? pause_ms : setting_interval);
        }
        if (scan.graph && (scan.signature != searched || has_fault)) {
            searched = calls_search(&scan, end_victim) ? scan.signature : 0;
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
    } while (!ready && !sleep_ms(100));
    if (ready) {
        log_event(false, "ready; innodb_deadlock_detect is OFF while this plugin is loaded");
        detect();
        scan_hand_back();
    }
    scan_disconnect();
    my_thread_end();
    return NULL;
}

static int start_thread(void)
{
    sigset_t all, before;
    int error;
    is_stopping = false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static int init(void *unused)
{
    (void)unused;
    return !calls_start() || start_thread() != 0;
}

static int deinit(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    is_stopping = true;
    pthread_cond_signal(&stopped);
    pthread_mutex_unlock(&lock);
    /* A task that hangs must not delay the server's end until its deadline. */
    calls_interrupt();
    pthread_join(thread, NULL);
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
}

static MYSQL_SYSVAR_UINT(interval, setting_interval, PLUGIN_VAR_RQCMDARG,
                         "Least time between two scans of the waits, milliseconds. InnoDB renews them after 100",
                         NULL, NULL, 120, 110, 60000, 0);
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
