/* What a victim's own thread does, by the interface for audits: events come in the thread that they
 * are about.
 *
 * KILL QUERY ends a wait with error 1317 and undoes the statement; the locks stay. InnoDB's own
 * detector gives error 1213 and rolls the transaction back. So, in the thread of a victim: when
 * 1317 is raised, 1213 is raised before it, and the first error counts; when the statement has
 * ended, the transaction is rolled back as by ROLLBACK.
 */
#include "plugin.h"

#include <mysql/plugin.h>
#include <mysql/plugin_audit.h>
#include <mysqld_error.h>
#include <pthread.h>
#include <stdatomic.h>

/* Victims at a time. */
#define MOST_VICTIMS 64

/* The server's function for the statement ROLLBACK. */
extern char server_rollback(MYSQL_THD thd) __asm__("_Z14trans_rollbackP3THD");

struct victim {
    unsigned long thread; /* 0: free */
    bool is_interrupted;
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

bool victims_add(unsigned long thread)
{
    struct victim *free_place;
    pthread_mutex_lock(&lock);
    free_place = find(thread) ? NULL : find(0);
    if (free_place) {
        *free_place = (struct victim){thread, false};
        atomic_fetch_add(&victim_count, 1);
    }
    pthread_mutex_unlock(&lock);
    return free_place != NULL;
}

void victims_remove(unsigned long thread)
{
    struct victim *victim;
    pthread_mutex_lock(&lock);
    victim = find(thread);
    if (victim) {
        victim->thread = 0;
        atomic_fetch_sub(&victim_count, 1);
    }
    pthread_mutex_unlock(&lock);
}

/* Whether this thread is a victim; notes that its statement is interrupted. */
static bool note_interrupted(unsigned long thread)
{
    struct victim *victim;
    pthread_mutex_lock(&lock);
    victim = find(thread);
    if (victim)
        victim->is_interrupted = true;
    pthread_mutex_unlock(&lock);
    return victim != NULL;
}

static bool was_interrupted(unsigned long thread)
{
    struct victim *victim;
    bool was;
    pthread_mutex_lock(&lock);
    victim = find(thread);
    was = victim && victim->is_interrupted;
    pthread_mutex_unlock(&lock);
    return was;
}

static void on_event(MYSQL_THD thd, unsigned int class, const void *raw)
{
    const struct mysql_event_general *event = raw;
    unsigned long thread;
    if (atomic_load_explicit(&victim_count, memory_order_relaxed) == 0 || class != MYSQL_AUDIT_GENERAL_CLASS || !thd)
        return;
    thread = thd_get_thread_id(thd);
    if (event->event_subclass == MYSQL_AUDIT_GENERAL_ERROR && event->general_error_code == ER_QUERY_INTERRUPTED) {
        if (note_interrupted(thread))
            my_error(ER_LOCK_DEADLOCK, 0);
    } else if (event->event_subclass == MYSQL_AUDIT_GENERAL_STATUS) {
        if (was_interrupted(thread))
            server_rollback(thd);
        victims_remove(thread);
    }
}

struct st_mysql_audit victims_audit = {MYSQL_AUDIT_INTERFACE_VERSION, NULL, on_event, {MYSQL_AUDIT_GENERAL_CLASSMASK}};
