/* What a victim's own thread does, by the interface for audits: events come in the thread that they
 * are about.
 *
 * A soft KILL QUERY ends a wait with error 1317 and undoes the statement; the locks stay. InnoDB's
 * own detector gives error 1213 and has the server roll the transaction back. So, in the thread of
 * a victim, when 1317 is raised:
 *   - 1213 is raised before it, and the first error counts;
 *   - the transaction is marked as InnoDB marks it. From then on the server owns the rollback: at
 *     the end of the outermost statement, also in a function, a trigger or an XA transaction.
 * When that statement ends the kill is withdrawn, so that handlers of a procedure run.
 */
#include "plugin.h"

#include <mysql/plugin.h>
#include <mysql/plugin_audit.h>
#include <mysql/service_kill_statement.h>
#include <mysqld_error.h>
#include <pthread.h>
#include <stdatomic.h>

/* Victims at a time. */
#define MOST_VICTIMS 64

/* The server's: what InnoDB calls for its own victims, and the end of a kill. */
extern void mark_for_rollback(MYSQL_THD thd, bool all) __asm__("_ZN3THD28mark_transaction_to_rollbackEb");
extern void withdraw_kill(MYSQL_THD thd) __asm__("_ZN3THD12reset_killedEv");

enum stage {
    ANNOUNCED,   /* its kill is being ordered */
    ORDERED,     /* its kill was accepted */
    INTERRUPTED, /* it has error 1213, and its transaction is marked */
};

struct victim {
    unsigned long thread; /* 0: free */
    enum stage stage;
};

static struct victim victims[MOST_VICTIMS];
static atomic_int victim_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* With the lock held. */
static struct victim *find(unsigned long thread)
{
    for (int i = 0; i < MOST_VICTIMS; i++)
        if (victims[i].thread == thread)
            return &victims[i];
    return NULL;
}

/* With the lock held. */
static void release(struct victim *victim)
{
    victim->thread = 0;
    atomic_fetch_sub(&victim_count, 1);
}

bool victims_add(unsigned long thread)
{
    struct victim *free_place;
    pthread_mutex_lock(&lock);
    free_place = find(thread) ? NULL : find(0);
    if (free_place) {
        *free_place = (struct victim){thread, ANNOUNCED};
        atomic_fetch_add(&victim_count, 1);
    }
    pthread_mutex_unlock(&lock);
    return free_place != NULL;
}

void victims_settle(unsigned long thread, bool is_ordered)
{
    struct victim *victim;
    pthread_mutex_lock(&lock);
    victim = find(thread);
    if (victim && !is_ordered)
        release(victim);
    else if (victim && victim->stage == ANNOUNCED)
        victim->stage = ORDERED;
    pthread_mutex_unlock(&lock);
}

/* Whether this thread is a victim that is interrupted now, for the first time. */
static bool interrupt(unsigned long thread)
{
    struct victim *victim;
    bool is_first;
    pthread_mutex_lock(&lock);
    victim = find(thread);
    is_first = victim && victim->stage != INTERRUPTED;
    if (is_first)
        victim->stage = INTERRUPTED;
    pthread_mutex_unlock(&lock);
    return is_first;
}

/* A statement of this thread has ended, perhaps inside of another. A victim stays one until it was
 * interrupted, or until the kill that was ordered is no longer pending: then its wait had ended
 * before. True: it was interrupted. */
static bool end_statement(unsigned long thread, bool is_kill_pending)
{
    struct victim *victim;
    bool was_interrupted;
    pthread_mutex_lock(&lock);
    victim = find(thread);
    was_interrupted = victim && victim->stage == INTERRUPTED;
    if (was_interrupted || (victim && victim->stage == ORDERED && !is_kill_pending))
        release(victim);
    pthread_mutex_unlock(&lock);
    return was_interrupted;
}

static void on_event(MYSQL_THD thd, unsigned int class, const void *raw)
{
    const struct mysql_event_general *event = raw;
    enum thd_kill_levels kill;
    if (atomic_load_explicit(&victim_count, memory_order_relaxed) == 0 || class != MYSQL_AUDIT_GENERAL_CLASS || !thd)
        return;
    if (event->event_subclass == MYSQL_AUDIT_GENERAL_ERROR && event->general_error_code == ER_QUERY_INTERRUPTED) {
        if (interrupt(thd_get_thread_id(thd))) {
            my_error(ER_LOCK_DEADLOCK, 0);
            mark_for_rollback(thd, true);
        }
    } else if (event->event_subclass == MYSQL_AUDIT_GENERAL_STATUS) {
        kill = thd_kill_level(thd);
        /* Ours is a soft one; a kill by others stays. */
        if (end_statement(thd_get_thread_id(thd), kill != THD_IS_NOT_KILLED) && kill == THD_ABORT_SOFTLY)
            withdraw_kill(thd);
    }
}

struct st_mysql_audit victims_audit = {MYSQL_AUDIT_INTERFACE_VERSION, NULL, on_event, {MYSQL_AUDIT_GENERAL_CLASSMASK}};
