/* The shared state: counters and the last event, for the view orbit_deadlock; orders for faults,
 * from its function. */
#include "detector.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

struct detector_state *detector_state;

void status_request_memory(void)
{
    RequestAddinShmemSpace(sizeof(struct detector_state));
}

void status_attach_memory(void)
{
    bool found;
    LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
    detector_state = ShmemInitStruct("orbit_deadlock", sizeof(struct detector_state), &found);
    if (!found) {
        memset(detector_state, 0, sizeof *detector_state);
        SpinLockInit(&detector_state->mutex);
        pg_atomic_init_u64(&detector_state->answered_at, 0);
    }
    LWLockRelease(AddinShmemInitLock);
}

void status_event(const char *text)
{
    TimestampTz now = GetCurrentTimestamp();
    SpinLockAcquire(&detector_state->mutex);
    strlcpy(detector_state->last_event, text, EVENT_SIZE);
    detector_state->last_event_at = now;
    SpinLockRelease(&detector_state->mutex);
}

static void require_state(void)
{
    if (!detector_state)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("orbit_deadlock must be loaded by shared_preload_libraries")));
}

static const char *run_in_name(void)
{
    return setting_run_in == RUN_IN_ORBIT ? "orbit" : setting_run_in == RUN_IN_FORK ? "fork" : "worker";
}

PGDLLEXPORT Datum orbit_deadlock_status(PG_FUNCTION_ARGS);
PG_FUNCTION_INFO_V1(orbit_deadlock_status);

/* One row: the columns of the view, in its order. */
Datum orbit_deadlock_status(PG_FUNCTION_ARGS)
{
    enum { COLUMNS = 16 };
    Datum values[COLUMNS];
    bool nulls[COLUMNS] = {false};
    struct detector_state now;
    TupleDesc row;
    int n = 0;
    require_state();
    if (get_call_result_type(fcinfo, NULL, &row) != TYPEFUNC_COMPOSITE || row->natts != COLUMNS)
        elog(ERROR, "orbit_deadlock_status: the SQL declaration is not this library's: ALTER EXTENSION orbit_deadlock "
            "UPDATE");
    SpinLockAcquire(&detector_state->mutex);
    memcpy(&now, detector_state, offsetof(struct detector_state, reports));
    SpinLockRelease(&detector_state->mutex);
    values[n++] = CStringGetTextDatum(run_in_name());
    nulls[n] = now.worker_pid == 0;
    values[n++] = Int32GetDatum(now.worker_pid);
    nulls[n] = now.orbit_pid == 0;
    values[n++] = Int32GetDatum(now.orbit_pid);
    values[n++] = Int64GetDatum(now.scans);
    values[n++] = Int64GetDatum(now.calls);
    values[n++] = Int64GetDatum(now.failed_calls);
    values[n++] = Int64GetDatum(now.crashes);
    values[n++] = Int64GetDatum(now.deadlocks);
    values[n++] = Int64GetDatum(now.refuted);
    values[n++] = Int64GetDatum(now.call_us);
    values[n++] = Int64GetDatum(now.snapshot_bytes);
    nulls[n] = now.last_scan == 0;
    values[n++] = TimestampTzGetDatum(now.last_scan);
    nulls[n] = now.last_call == 0;
    values[n++] = TimestampTzGetDatum(now.last_call);
    nulls[n] = now.last_deadlock == 0;
    values[n++] = TimestampTzGetDatum(now.last_deadlock);
    nulls[n] = now.last_event_at == 0;
    values[n++] = TimestampTzGetDatum(now.last_event_at);
    nulls[n] = now.last_event_at == 0;
    values[n++] = CStringGetTextDatum(now.last_event);
    Assert(n == COLUMNS);
    return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(row), values, nulls));
}

static int32 known_fault(const char *name)
{
    int32 fault = fault_by_name(name, "assert");
    if (fault == FAULT_NONE)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("no fault is named \"%s\"", name),
                        errhint("Faults: segv, hang, memory, recursion, kill, lie, assert.")));
    return fault;
}

PGDLLEXPORT Datum orbit_deadlock_fault(PG_FUNCTION_ARGS);
PG_FUNCTION_INFO_V1(orbit_deadlock_fault);

/* Has the next calls of the task do harm. Waits until they have ended, except for assert, which
 * waits for a deadlock. Returns the last event. */
Datum orbit_deadlock_fault(PG_FUNCTION_ARGS)
{
    int32 fault, calls = PG_GETARG_INT32(1), done;
    char event[EVENT_SIZE];
    Latch *worker;
    require_state();
    if (!superuser())
        ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("only a superuser may call "
            "orbit_deadlock_fault()")));
    if (!setting_faults)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("faults are not permitted"),
                        errhint("SET orbit_deadlock.faults = on.")));
    fault = known_fault(text_to_cstring(PG_GETARG_TEXT_PP(0)));
    if (calls < 1)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("the number of calls must be at least 1, not "
            "%d", calls)));
    SpinLockAcquire(&detector_state->mutex);
    detector_state->fault = fault;
    detector_state->fault_calls = calls;
    done = detector_state->faults_done + calls;
    worker = detector_state->worker_latch;
    SpinLockRelease(&detector_state->mutex);
    if (worker)
        SetLatch(worker);
    while (fault != FAULT_ASSERT_ON_CYCLE) {
        bool ended;
        SpinLockAcquire(&detector_state->mutex);
        ended = detector_state->faults_done >= done;
        SpinLockRelease(&detector_state->mutex);
        if (ended)
            break;
        (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
    }
    SpinLockAcquire(&detector_state->mutex);
    strlcpy(event, detector_state->last_event, EVENT_SIZE);
    SpinLockRelease(&detector_state->mutex);
    PG_RETURN_TEXT_P(cstring_to_text(event));
}
