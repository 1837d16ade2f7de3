/* The background worker: scans the lock table at intervals, has the task search what it found, and
 * breaks the deadlocks that are proven.
 *
 * A cycle can close only when a wait begins: while the waits are those of the last completed call
 * there is nothing to search. So a server without lock waits makes no calls, and neither does one
 * whose waits stay as they are.
 *
 * Threads: the library has one in this process, its supervisor. It blocks all signals, so
 * PostgreSQL's handlers run in the main thread only, and it calls nothing of PostgreSQL.
 */
#include "detector.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* After a call that could not be made, or failed: soon again, the orbit is being started. */
#define RETRY_MS 10

/* The waits that the last completed call searched; 0: none. */
static uint64 searched;
/* A call is pending, on the scan in call_context. */
static bool is_pending;
static int32 pending_fault;
static uint64 pending_signature;
static MemoryContext call_context;
/* Says once that calls cannot be made. */
static bool said_unavailable;
/* A cycle of the pending call was left to the server's own detector. */
static bool is_left;
/* All waits of the last scan are searched, and the orbit is there for the next ones. */
static bool is_answered;

/* Longest sleep, milliseconds: the answer is renewed as often. */
#define BEAT_MS 300

static void on_cycle(struct lock_scan *scan, const struct found_cycle *cycle, size_t size)
{
    enum break_end end = lock_table_break(scan, cycle, size);
    TimestampTz now = GetCurrentTimestamp();
    SpinLockAcquire(&detector_state->mutex);
    is_left |= end == BREAK_LEFT;
    if (end == BREAK_DONE) {
        detector_state->deadlocks++;
        detector_state->last_deadlock = now;
    } else if (end == BREAK_REFUTED) {
        detector_state->refuted++;
    }
    SpinLockRelease(&detector_state->mutex);
}

static int32 next_fault(void)
{
    int32 fault;
    SpinLockAcquire(&detector_state->mutex);
    fault = detector_state->fault_calls > 0 ? detector_state->fault : FAULT_NONE;
    SpinLockRelease(&detector_state->mutex);
    return fault;
}

/* An order for a fault counts as done with the call that had it; one to fail on a cycle, with a
 * call that failed. */
static void fault_done(int32 fault, enum call_end end)
{
    if (fault == FAULT_NONE || end == CALL_NOT_MADE || (fault == FAULT_ASSERT_ON_CYCLE && end == CALL_RETURNED))
        return;
    SpinLockAcquire(&detector_state->mutex);
    if (detector_state->fault_calls > 0)
        detector_state->fault_calls--;
    detector_state->faults_done++;
    SpinLockRelease(&detector_state->mutex);
}

static void publish_orbit_pid(void)
{
    int pid = detector_orbit_pid();
    SpinLockAcquire(&detector_state->mutex);
    detector_state->orbit_pid = pid;
    SpinLockRelease(&detector_state->mutex);
}

/* Books how a call ended. Returns how long the worker may sleep, milliseconds. */
static long after_call(enum call_end end)
{
    is_pending = end == CALL_PENDING;
    if (is_pending)
        return setting_interval;
    fault_done(pending_fault, end);
    MemoryContextReset(call_context);
    if (end == CALL_RETURNED) {
        searched = pending_signature;
        is_answered = !is_left;
        said_unavailable = false;
        return setting_interval;
    }
    searched = 0;
    is_answered = false;
    return Min(RETRY_MS, setting_interval);
}

static long scan_and_call(void)
{
    MemoryContext before;
    struct lock_scan *scan;
    enum call_end end;
    TimestampTz now = GetCurrentTimestamp();
    pending_fault = next_fault();
    SpinLockAcquire(&detector_state->mutex);
    detector_state->scans++;
    detector_state->last_scan = now;
    SpinLockRelease(&detector_state->mutex);
    if (pending_fault == FAULT_NONE && !lock_table_has_waits()) {
        searched = 0;
        is_answered = true;
        return setting_interval;
    }
    before = MemoryContextSwitchTo(call_context);
    scan = lock_table_scan();
    if (pending_fault == FAULT_NONE && (scan->waits->wait_count < 2
        || (searched != 0 && scan->signature == searched))) {
        is_answered |= scan->waits->wait_count < 2;
        MemoryContextSwitchTo(before);
        MemoryContextReset(call_context);
        return setting_interval;
    }
    is_left = false;
    pending_signature = scan->signature;
    end = detector_call(scan, pending_fault, on_cycle);
    if (end == CALL_NOT_MADE && !said_unavailable) {
        said_unavailable = true;
        ereport(LOG, (errmsg("orbit_deadlock: the detector is not available just now")));
    }
    MemoryContextSwitchTo(before);
    return after_call(end);
}

static long go_on(void)
{
    MemoryContext before = MemoryContextSwitchTo(call_context);
    enum call_end end = detector_poll();
    MemoryContextSwitchTo(before);
    return after_call(end);
}

static void at_exit(int code, Datum argument)
{
    pg_atomic_write_u64(&detector_state->answered_at, 0);
    detector_stop();
    SpinLockAcquire(&detector_state->mutex);
    detector_state->worker_pid = 0;
    detector_state->orbit_pid = 0;
    detector_state->worker_latch = NULL;
    SpinLockRelease(&detector_state->mutex);
}

/* Sessions put the server's own detector off for as long as this is renewed. */
static void renew_answer(void)
{
    if (is_answered && (setting_run_in != RUN_IN_ORBIT || detector_orbit_pid() != 0))
        pg_atomic_write_u64(&detector_state->answered_at, (uint64)GetCurrentTimestamp());
}

/* Sleeps until something is to be done. True: it was woken. */
static bool sleep_for(long ms)
{
    int events = WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH;
    int fd = is_pending ? detector_fd() : -1;
    int woken;
    if (fd >= 0)
        woken = WaitLatchOrSocket(MyLatch, events | WL_SOCKET_READABLE, fd, ms, PG_WAIT_EXTENSION);
    else
        woken = WaitLatch(MyLatch, events, is_pending ? 1 : ms, PG_WAIT_EXTENSION);
    ResetLatch(MyLatch);
    return (woken & WL_LATCH_SET) != 0;
}

static void handle_interrupts(void)
{
    CHECK_FOR_INTERRUPTS();
    if (ConfigReloadPending) {
        ConfigReloadPending = false;
        ProcessConfigFile(PGC_SIGHUP);
        detector_reload();
    }
    if (ShutdownRequestPending) {
        /* With status 1 the postmaster starts the worker again, unless the server stops. */
        proc_exit(1);
    }
}

static void once_a_second(void)
{
    static TimestampTz last;
    TimestampTz now = GetCurrentTimestamp();
    if (TimestampDifferenceExceeds(last, now, 1000)) {
        last = now;
        detector_reap_orphans();
    }
}

void orbit_deadlock_worker(Datum argument)
{
    long sleep_ms = 0;
    pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    BackgroundWorkerUnblockSignals();
    before_shmem_exit(at_exit, 0);
    detector_start();
    call_context = AllocSetContextCreate(TopMemoryContext, "orbit_deadlock call", ALLOCSET_DEFAULT_SIZES);
    SpinLockAcquire(&detector_state->mutex);
    detector_state->worker_pid = MyProcPid;
    detector_state->worker_latch = MyLatch;
    SpinLockRelease(&detector_state->mutex);
    ereport(LOG, (errmsg("orbit_deadlock: ready, a scan every %d ms; the server's own detector is put off for "
                         "%d s at most", setting_interval, setting_server_timeout)));
    for (;;) {
        bool is_woken = sleep_for(Min(sleep_ms, BEAT_MS));
        handle_interrupts();
        publish_orbit_pid();
        once_a_second();
        if (is_pending)
            sleep_ms = go_on();
        else if (is_woken || sleep_ms <= BEAT_MS)
            sleep_ms = scan_and_call();
        else
            sleep_ms -= BEAT_MS;
        renew_answer();
    }
}
