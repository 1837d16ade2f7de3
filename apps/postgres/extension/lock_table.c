/* The lock table of the server: packed waits out of it, proofs of deadlocks and failed waits into
 * it.
 *
 * What the task hands back is trusted in nothing. A cycle of waits is proven against the live
 * table, edge by edge, while all its partitions are locked; only then its victim's wait is failed.
 * So a task that has gone mad can break no wait that is not in a deadlock: it can only miss one.
 *
 * The victim's wait is failed as the server's own detector does it: removed from the queue with the
 * state "error", and woken. The victim then raises the server's own error, 40P01 "deadlock
 * detected", which applications know how to retry.
 */
#include "detector.h"

#include "lib/stringinfo.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/backend_status.h"
#include "utils/elog.h"
#include "utils/memutils.h"

static void lock_all_partitions(LWLockMode mode)
{
    for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
        LWLockAcquire(LockHashPartitionLockByIndex(i), mode);
}

static void unlock_all_partitions(void)
{
    for (int i = NUM_LOCK_PARTITIONS - 1; i >= 0; i--)
        LWLockRelease(LockHashPartitionLockByIndex(i));
}

static bool is_waiting(const PGPROC *proc)
{
    return proc->waitStatus == PROC_WAIT_STATUS_WAITING && proc->waitLock != NULL;
}

static PGPROC *leader_of(PGPROC *proc)
{
    return proc->lockGroupLeader ? proc->lockGroupLeader : proc;
}

static LOCKMASK conflicts_of(const LOCK *lock, LOCKMODE mode)
{
    return GetLocksMethodTable(lock)->conflictTab[mode];
}

bool lock_table_has_waits(void)
{
    for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
        if (is_waiting(&ProcGlobal->allProcs[i]))
            return true;
    return false;
}

/* ---- out of the table ---- */

/* A scan being made: arrays of their own until the counts are known. */
struct draft {
    struct waits counts;
    struct awaited_lock *locks;
    struct lock_wait *queue;
    struct lock_hold *holds;
    struct waiter *waiters;
    int32 hold_capacity;
};

static void add_queue(struct draft *d, const LOCK *lock)
{
    PGPROC *proc = (PGPROC *)lock->waitProcs.links.next;
    for (int i = 0; i < lock->waitProcs.size; i++, proc = (PGPROC *)proc->links.next) {
        int32 n = d->counts.wait_count++;
        d->waiters[n].procno = proc->pgprocno;
        d->waiters[n].pid = proc->pid;
        d->waiters[n].tag = lock->tag;
        d->waiters[n].mode = proc->waitLockMode;
        d->waiters[n].since = pg_atomic_read_u64(&proc->waitStart);
        d->queue[n].lock = d->counts.lock_count;
        d->queue[n].group = leader_of(proc)->pgprocno;
        d->queue[n].mode = LOCKBIT_ON(proc->waitLockMode);
        d->queue[n].conflicts = (uint32)conflicts_of(lock, proc->waitLockMode);
        d->queue[n].since = (int64)d->waiters[n].since;
    }
}

/* Holders of which no process of the group waits are in no cycle. Whether another member of a
 * group waits is not looked up: all holders that are in a group count. */
static void add_holds(struct draft *d, const LOCK *lock)
{
    const SHM_QUEUE *list = &lock->procLocks;
    PROCLOCK *hold = (PROCLOCK *)SHMQueueNext(list, list, offsetof(PROCLOCK, lockLink));
    for (; hold; hold = (PROCLOCK *)SHMQueueNext(list, &hold->lockLink, offsetof(PROCLOCK, lockLink))) {
        PGPROC *proc = hold->tag.myProc;
        if (hold->holdMask == 0 || hold->groupLeader->pgprocno >= d->counts.group_limit)
            continue;
        if (!is_waiting(proc) && proc->lockGroupLeader == NULL)
            continue;
        if (d->counts.hold_count < d->hold_capacity) {
            d->holds[d->counts.hold_count].group = hold->groupLeader->pgprocno;
            d->holds[d->counts.hold_count].modes = (uint32)hold->holdMask;
        }
        d->counts.hold_count++;
    }
}

static void add_lock(struct draft *d, const LOCK *lock)
{
    struct awaited_lock *out = &d->locks[d->counts.lock_count];
    out->first_wait = d->counts.wait_count;
    out->first_hold = d->counts.hold_count;
    add_queue(d, lock);
    add_holds(d, lock);
    out->wait_count = d->counts.wait_count - out->first_wait;
    out->hold_count = d->counts.hold_count - out->first_hold;
    d->counts.lock_count++;
}

static uint64 sign(const struct draft *d)
{
    uint64 hash = UINT64CONST(0xcbf29ce484222325);
    for (int32 i = 0; i < d->counts.wait_count; i++) {
        /* A wait whose start is not written yet may be confused with the next one of its
         * process. */
        uint64 words[] = {(uint64)d->waiters[i].procno << 32 | (uint32)d->waiters[i].pid, d->waiters[i].since};
        if (d->waiters[i].since == 0)
            return 0;
        for (int k = 0; k < 2; k++)
            hash = (hash ^ words[k]) * UINT64CONST(0x100000001b3);
    }
    return hash;
}

static struct lock_scan *pack(const struct draft *d)
{
    struct lock_scan *scan = palloc(sizeof *scan);
    scan->size = waits_size(d->counts.lock_count, d->counts.wait_count, d->counts.hold_count);
    scan->waits = palloc(scan->size);
    *scan->waits = d->counts;
    memcpy(waits_locks(scan->waits), d->locks, d->counts.lock_count * sizeof *d->locks);
    memcpy(waits_queue(scan->waits), d->queue, d->counts.wait_count * sizeof *d->queue);
    memcpy(waits_holds(scan->waits), d->holds, d->counts.hold_count * sizeof *d->holds);
    scan->waiters = d->waiters;
    scan->signature = sign(d);
    return scan;
}

struct lock_scan *lock_table_scan(void)
{
    uint32 procs = ProcGlobal->allProcCount;
    struct draft d = {0};
    d.locks = palloc(procs * sizeof *d.locks);
    d.queue = palloc(procs * sizeof *d.queue);
    d.waiters = palloc(procs * sizeof *d.waiters);
    d.hold_capacity = 4 * procs;
    for (;;) {
        d.holds = palloc_extended(d.hold_capacity * sizeof *d.holds, MCXT_ALLOC_HUGE);
        memset(&d.counts, 0, sizeof d.counts);
        d.counts.group_limit = (int32)procs;
        lock_all_partitions(LW_SHARED);
        for (uint32 i = 0; i < procs; i++) {
            PGPROC *proc = &ProcGlobal->allProcs[i];
            /* Each awaited lock once: with the first process of its queue. */
            if (is_waiting(proc) && proc->waitLock->waitProcs.links.next == &proc->links)
                add_lock(&d, proc->waitLock);
        }
        unlock_all_partitions();
        if (d.counts.hold_count <= d.hold_capacity)
            return pack(&d);
        d.hold_capacity = d.counts.hold_count + procs;
        pfree(d.holds);
    }
}

/* ---- proofs ---- */

/* The process of a wait of the scan, if it is in that wait still; NULL otherwise. The partitions
 * are locked. */
static PGPROC *still_waiting(const struct waiter *w)
{
    PGPROC *proc = &ProcGlobal->allProcs[w->procno];
    if (proc->pid != w->pid || !is_waiting(proc) || proc->waitLockMode != w->mode)
        return NULL;
    if (w->since != 0 && pg_atomic_read_u64(&proc->waitStart) != w->since)
        return NULL;
    return memcmp(&proc->waitLock->tag, &w->tag, sizeof(LOCKTAG)) == 0 ? proc : NULL;
}

/* How a process is blocked by the group of another: not at all, by that group's place before it in
 * the queue for the lock, or by its hold of the lock. */
enum block { BLOCK_NONE, BLOCK_BY_ORDER, BLOCK_BY_HOLD };

static enum block blocked_by(PGPROC *proc, PGPROC *blocker)
{
    const LOCK *lock = proc->waitLock;
    LOCKMASK conflicts = conflicts_of(lock, proc->waitLockMode);
    const SHM_QUEUE *list = &lock->procLocks;
    PROCLOCK *hold = (PROCLOCK *)SHMQueueNext(list, list, offsetof(PROCLOCK, lockLink));
    PGPROC *before = (PGPROC *)lock->waitProcs.links.next;
    if (leader_of(proc) == leader_of(blocker))
        return BLOCK_NONE;
    for (; hold; hold = (PROCLOCK *)SHMQueueNext(list, &hold->lockLink, offsetof(PROCLOCK, lockLink)))
        if (hold->groupLeader == leader_of(blocker) && (hold->holdMask & conflicts))
            return BLOCK_BY_HOLD;
    for (int i = 0; i < lock->waitProcs.size && before != proc; i++, before = (PGPROC *)before->links.next)
        if (leader_of(before) == leader_of(blocker) && (LOCKBIT_ON(before->waitLockMode) & conflicts))
            return BLOCK_BY_ORDER;
    return BLOCK_NONE;
}

static bool is_well_formed(const struct lock_scan *scan, const struct found_cycle *cycle, size_t size)
{
    if (size < sizeof *cycle || cycle->length < 2 || cycle->length > scan->waits->wait_count ||
        size != sizeof *cycle + (size_t)cycle->length * sizeof(int32))
        return false;
    if (cycle->victim < 0 || cycle->victim >= cycle->length)
        return false;
    for (int32 i = 0; i < cycle->length; i++)
        if (cycle->waits[i] < 0 || cycle->waits[i] >= scan->waits->wait_count)
            return false;
    return true;
}

/* BREAK_DONE: it is one that only a victim can end. */
static enum break_end prove(const struct lock_scan *scan, const struct found_cycle *cycle)
{
    enum break_end end = BREAK_DONE;
    for (int32 i = 0; i < cycle->length; i++) {
        PGPROC *proc = still_waiting(&scan->waiters[cycle->waits[i]]);
        PGPROC *next = still_waiting(&scan->waiters[cycle->waits[(i + 1) % cycle->length]]);
        enum block block = proc && next ? blocked_by(proc, next) : BLOCK_NONE;
        if (block == BLOCK_NONE)
            return BREAK_REFUTED;
        if (block == BLOCK_BY_ORDER)
            end = BREAK_LEFT;
    }
    return end;
}

/* ---- reports ---- */

/* The lines that the server's own detector writes, for the client. */
static void describe(StringInfo text, const struct lock_scan *scan, const struct found_cycle *cycle)
{
    for (int32 i = 0; i < cycle->length; i++) {
        const struct waiter *w = &scan->waiters[cycle->waits[i]];
        const struct waiter *next = &scan->waiters[cycle->waits[(i + 1) % cycle->length]];
        StringInfoData lock;
        initStringInfo(&lock);
        DescribeLockTag(&lock, &w->tag);
        if (i > 0)
            appendStringInfoChar(text, '\n');
        appendStringInfo(text, "Process %d waits for %s on %s; blocked by process %d.", w->pid,
                         GetLockmodeName(w->tag.locktag_lockmethodid, w->mode), lock.data, next->pid);
    }
}

static void describe_statements(StringInfo text, const struct lock_scan *scan, const struct found_cycle *cycle)
{
    for (int32 i = 0; i < cycle->length; i++) {
        int pid = scan->waiters[cycle->waits[i]].pid;
        appendStringInfo(text, "\nProcess %d: %s", pid, pgstat_get_backend_current_activity(pid, false));
    }
}

static void leave_report(int pid, const char *text)
{
    struct victim_report *report;
    SpinLockAcquire(&detector_state->mutex);
    report = &detector_state->reports[detector_state->next_report++ % REPORT_COUNT];
    report->pid = pid;
    strlcpy(report->text, text, REPORT_SIZE);
    SpinLockRelease(&detector_state->mutex);
}

/* Takes the report for this process, if there is one. */
static bool take_report(int pid, char text[REPORT_SIZE])
{
    bool found = false;
    SpinLockAcquire(&detector_state->mutex);
    for (int i = 0; i < REPORT_COUNT && !found; i++) {
        if (detector_state->reports[i].pid == pid) {
            strlcpy(text, detector_state->reports[i].text, REPORT_SIZE);
            detector_state->reports[i].pid = 0;
            found = true;
        }
    }
    SpinLockRelease(&detector_state->mutex);
    return found;
}

enum break_end lock_table_break(const struct lock_scan *scan, const struct found_cycle *cycle, size_t size)
{
    StringInfoData lines, statements;
    PGPROC *victim = NULL;
    enum break_end end;
    int pid;
    if (!is_well_formed(scan, cycle, size))
        return BREAK_REFUTED;
    initStringInfo(&lines);
    initStringInfo(&statements);
    describe(&lines, scan, cycle);
    pid = scan->waiters[cycle->waits[cycle->victim]].pid;
    lock_all_partitions(LW_EXCLUSIVE);
    end = prove(scan, cycle);
    if (end == BREAK_DONE) {
        victim = &ProcGlobal->allProcs[scan->waiters[cycle->waits[cycle->victim]].procno];
        leave_report(pid, lines.data);
        RemoveFromWaitQueue(victim, LockTagHashCode(&victim->waitLock->tag));
    }
    unlock_all_partitions();
    if (!victim)
        return end;
    describe_statements(&statements, scan, cycle);
    SetLatch(&victim->procLatch);
    ereport(LOG, (errmsg("orbit_deadlock: broke a deadlock of %d processes: the wait of process %d "
        "fails", cycle->length, pid),
                  errdetail_internal("%s%s", lines.data, statements.data)));
    return BREAK_DONE;
}

static emit_log_hook_type previous_log_hook;

/* In the victim: its message lacks the lines that the server's own detector would have put
 * there. */
static void complete_report(ErrorData *error)
{
    char text[REPORT_SIZE];
    if (error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED && detector_state &&
        (error->detail == NULL || error->detail[0] == '\0') && take_report(MyProcPid, text)) {
        error->detail = MemoryContextStrdup(error->assoc_context, text);
        error->detail_log = error->detail;
    }
    if (previous_log_hook)
        previous_log_hook(error);
}

void lock_table_install_report_hook(void)
{
    previous_log_hook = emit_log_hook;
    emit_log_hook = complete_report;
}
