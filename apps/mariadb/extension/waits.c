/* Which threads wait for a row's lock, and since when: the server reports each wait to its
 * scheduler of threads, so that a pool can run another thread meanwhile. These functions stand in
 * for the scheduler's two, and call them.
 *
 * So the detector sleeps while at most one thread waits, and scans when a second one begins to.
 * InnoDB reports a wait after it has queued the lock: a scan that begins later shows the wait.
 */
#include "plugin.h"

#include <errno.h>
#include <mysql/plugin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* The server's, as of 10.11. */
struct scheduler {
    unsigned int max_threads;
    void *connection_count, *max_connections, *init, *add_connection;
    void (*wait_begin)(MYSQL_THD thd, int type);
    void (*wait_end)(MYSQL_THD thd);
};
extern struct scheduler *thread_scheduler, *extra_thread_scheduler;
extern unsigned long long thd_query_id(const MYSQL_THD thd);
extern bool thd_is_slave(const MYSQL_THD thd);

/* A wait that ends within this time, microseconds, is not worth a scan. */
#define GRACE_US 1000
/* Waits that stay the same are scanned again after this time, microseconds: InnoDB may move a lock
 * to another record. */
#define RESCAN_US 500000
/* Longest sleep, microseconds: the orbit's pid is renewed as often. */
#define TICK_US 100000

struct waiter {
    struct waiting_thread about;
    struct waiter *next, **link; /* link: NULL: it does not wait */
    unsigned start;              /* the list is that after so many calls of waits_start */
};

static _Thread_local struct waiter self;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* With the lock held. */
static struct waiter *waiters;
static size_t waiter_count;
static uint64_t begun_count;
static bool is_stopping, is_woken;
static unsigned starts;

/* Threads that run a function of this file on behalf of the scheduler. */
static atomic_int inside;

static void note_begin(MYSQL_THD thd, int type)
{
    if (type != THD_WAIT_ROW_LOCK)
        return;
    pthread_mutex_lock(&lock);
    self.about = (struct waiting_thread){thd_get_thread_id(thd), thd_query_id(thd), begun_count + 1, thd_is_slave(thd)};
    if (!self.link || self.start != starts) {
        self.start = starts;
        self.next = waiters;
        self.link = &waiters;
        if (waiters)
            waiters->link = &self.next;
        waiters = &self;
        waiter_count++;
    }
    begun_count++;
    if (waiter_count >= 2)
        pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static void note_end(void)
{
    if (!self.link)
        return;
    pthread_mutex_lock(&lock);
    /* The plugin may have been unloaded and loaded again meanwhile, its memory the same. */
    if (self.start == starts) {
        *self.link = self.next;
        if (self.next)
            self.next->link = self.link;
        waiter_count--;
    }
    self.link = NULL;
    pthread_mutex_unlock(&lock);
}

/* A scheduler's functions, and what they were. Connections of extra_port have a scheduler of their
 * own. */
#define HOOKS(name)                                                                                               \
    static struct scheduler before_##name;                                                                        \
    static void begin_##name(MYSQL_THD thd, int type)                                                             \
    {                                                                                                             \
        atomic_fetch_add(&inside, 1);                                                                             \
        note_begin(thd, type);                                                                                    \
        if (before_##name.wait_begin)                                                                             \
            before_##name.wait_begin(thd, type);                                                                  \
        atomic_fetch_sub(&inside, 1);                                                                             \
    }                                                                                                             \
    static void end_##name(MYSQL_THD thd)                                                                         \
    {                                                                                                             \
        atomic_fetch_add(&inside, 1);                                                                             \
        note_end();                                                                                               \
        if (before_##name.wait_end)                                                                               \
            before_##name.wait_end(thd);                                                                          \
        atomic_fetch_sub(&inside, 1);                                                                             \
    }
HOOKS(of_all)
HOOKS(of_extra)

static void set(struct scheduler *scheduler, void (*begin)(MYSQL_THD, int), void (*end)(MYSQL_THD))
{
    __atomic_store_n(&scheduler->wait_end, end, __ATOMIC_RELEASE);
    __atomic_store_n(&scheduler->wait_begin, begin, __ATOMIC_RELEASE);
}

void waits_start(void)
{
    is_stopping = is_woken = false;
    waiters = NULL;
    waiter_count = 0;
    starts++;
    before_of_all = *thread_scheduler;
    before_of_extra = *extra_thread_scheduler;
    set(thread_scheduler, begin_of_all, end_of_all);
    if (extra_thread_scheduler != thread_scheduler)
        set(extra_thread_scheduler, begin_of_extra, end_of_extra);
}

void waits_stop(void)
{
    set(thread_scheduler, before_of_all.wait_begin, before_of_all.wait_end);
    if (extra_thread_scheduler != thread_scheduler)
        set(extra_thread_scheduler, before_of_extra.wait_begin, before_of_extra.wait_end);
    /* This code may be unloaded next: a thread that has read the function's address calls it within
     * this time. */
    usleep(100000);
    while (atomic_load(&inside) != 0)
        usleep(1000);
}

uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* With the lock held: sleeps until this time, or until something has changed. False: it is that
 * time. */
static bool sleep_until(uint64_t us)
{
    const struct timespec until = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    return pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until) != ETIMEDOUT;
}

bool waits_await(uint64_t due_us, uint64_t *seen)
{
    uint64_t tick_us = now_us() + TICK_US, rescan_us = due_us + RESCAN_US, grace_us;
    bool are_new, may_be_deadlocked;
    pthread_mutex_lock(&lock);
    while (!is_stopping && !is_woken && now_us() < due_us)
        sleep_until(due_us);
    while (!is_stopping && !is_woken && (waiter_count < 2 || begun_count == *seen) && sleep_until(tick_us))
        ;
    are_new = begun_count != *seen;
    grace_us = now_us() + GRACE_US;
    while (!is_stopping && !is_woken && waiter_count >= 2 && are_new && sleep_until(grace_us))
        ;
    may_be_deadlocked = waiter_count >= 2 && (are_new || now_us() >= rescan_us);
    if (may_be_deadlocked)
        *seen = begun_count;
    is_woken = false;
    pthread_mutex_unlock(&lock);
    return may_be_deadlocked;
}

size_t waits_list(struct waiting_thread **list)
{
    size_t count = 0;
    pthread_mutex_lock(&lock);
    *list = malloc(waiter_count * sizeof **list + 1);
    for (struct waiter *w = waiters; *list && w; w = w->next)
        (*list)[count++] = w->about;
    pthread_mutex_unlock(&lock);
    return count;
}

void waits_wake(bool stop)
{
    pthread_mutex_lock(&lock);
    is_woken = true;
    is_stopping |= stop;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

bool waits_are_stopped(void)
{
    bool stopped;
    pthread_mutex_lock(&lock);
    stopped = is_stopping;
    pthread_mutex_unlock(&lock);
    return stopped;
}
