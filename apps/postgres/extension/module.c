/* orbit_deadlock: PostgreSQL's deadlock detector, in an orbit. This file: settings and
 * registration. */
#include "detector.h"

#include <dlfcn.h>
#include <limits.h>

#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

int setting_interval = 50;
int setting_deadline = 1000;
int setting_memory = 64;
int setting_victim_window = 1000;
int setting_server_timeout = 600;
int setting_run_in = RUN_IN_ORBIT;
bool setting_wait_for_call = false;
bool setting_faults = false;

static const struct config_enum_entry run_in_options[] = {
    {"orbit", RUN_IN_ORBIT, false},
    {"fork", RUN_IN_FORK, false},
    {"worker", RUN_IN_WORKER, false},
    {NULL, 0, false},
};

static shmem_request_hook_type previous_request_hook;
static shmem_startup_hook_type previous_startup_hook;

static void request_memory(void)
{
    if (previous_request_hook)
        previous_request_hook();
    status_request_memory();
}

static void attach_memory(void)
{
    if (previous_startup_hook)
        previous_startup_hook();
    status_attach_memory();
}

static void define_settings(void)
{
    DefineCustomIntVariable("orbit_deadlock.interval", "Time between two scans of the lock "
        "table.", NULL, &setting_interval,
                            50, 1, 60000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
    DefineCustomIntVariable("orbit_deadlock.deadline", "Longest time that a run of the detector may take.",
                            "After that its process is killed and started again.", &setting_deadline, 1000, 1, 600000,
                            PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
    DefineCustomIntVariable("orbit_deadlock.memory", "Memory that the detector's process may "
        "use.", NULL, &setting_memory, 64,
                            4, INT_MAX / 1024, PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);
    DefineCustomIntVariable("orbit_deadlock.victim_window",
                            "Chooses the victim that the server itself would with this deadlock_timeout.", NULL,
                            &setting_victim_window, 1000, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
    DefineCustomIntVariable("orbit_deadlock.server_timeout",
                            "How long a wait may last until the server's own detector runs in any case.",
                            "-1: it runs after deadlock_timeout, as without the library.", &setting_server_timeout,
                            600, -1, INT_MAX / 1000,
                            PGC_POSTMASTER, GUC_UNIT_S, NULL, NULL, NULL);
    DefineCustomEnumVariable("orbit_deadlock.run_in", "Where the detector runs; all but orbit are for comparison.",
                             "fork: a child for each run. worker: in the background worker, where a crash ends all "
                             "sessions.",
                             &setting_run_in, RUN_IN_ORBIT, run_in_options, PGC_POSTMASTER, 0, NULL, NULL, NULL);
    DefineCustomBoolVariable("orbit_deadlock.wait_for_call", "Has the worker block while the detector runs.",
                             "For comparison: off, it waits for other events meanwhile.", &setting_wait_for_call, false,
                             PGC_SIGHUP, 0, NULL, NULL, NULL);
    DefineCustomBoolVariable("orbit_deadlock.faults", "Whether a superuser may call orbit_deadlock_fault().", NULL,
                             &setting_faults, false, PGC_SUSET, 0, NULL, NULL, NULL);
    MarkGUCPrefixReserved("orbit_deadlock");
}

void _PG_init(void)
{
    BackgroundWorker worker = {0};
    Dl_info library;
    if (!process_shared_preload_libraries_in_progress)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("orbit_deadlock must be loaded by shared_preload_libraries"),
                        errhint("Add orbit_deadlock to shared_preload_libraries and restart the server.")));
    define_settings();
    postpone_server_detector();
    previous_request_hook = shmem_request_hook;
    shmem_request_hook = request_memory;
    previous_startup_hook = shmem_startup_hook;
    shmem_startup_hook = attach_memory;
    lock_table_install_report_hook();

    snprintf(worker.bgw_name, BGW_MAXLEN, "orbit deadlock detector");
    snprintf(worker.bgw_type, BGW_MAXLEN, "orbit deadlock detector");
    /* The library as it was loaded: by name, or by a path that an administrator gave. */
    if (dladdr((void *)_PG_init, &library) == 0 || strlen(library.dli_fname) >= BGW_MAXLEN)
        ereport(ERROR, (errmsg("orbit_deadlock: the path of the library must be shorter than %d bytes", BGW_MAXLEN)));
    strlcpy(worker.bgw_library_name, library.dli_fname, BGW_MAXLEN);
    snprintf(worker.bgw_function_name, BGW_MAXLEN, "orbit_deadlock_worker");
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = 1;
    RegisterBackgroundWorker(&worker);
}
