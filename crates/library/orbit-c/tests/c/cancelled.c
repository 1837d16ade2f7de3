/* A thread that is cancelled in a call of the library, whichever blocks, ends when that call has
 * returned, and the library works as before. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum entry { CALL, CALL_WITH, WAIT, WAIT_TIMEOUT, PULL, FULL_QUEUE, ENTRIES };

static struct orbit *orbit;
static enum entry entry;
static atomic_int inside, returned;

static long task(void *store, void *args)
{
    (void)store;
    while (*(int *)args)
        pause();
    return 7;
}

static struct orbit_future *begin(int pauses)
{
    return orbit_call_async(orbit, 0, 0, NULL, NULL, &pauses, sizeof pauses);
}

static void *blocks(void *unused)
{
    int pauses = 1;
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    struct orbit_future *future = NULL;
    struct orbit_update *update;
    if (entry == WAIT || entry == WAIT_TIMEOUT || entry == PULL || entry == FULL_QUEUE)
        CHECK((future = begin(1)));
    inside = 1;
    switch (entry) {
    case CALL:
        orbit_call(orbit, 0, NULL, NULL, &pauses, sizeof pauses, NULL);
        break;
    case CALL_WITH:
        orbit_call_with(orbit, 0, NULL, &pauses, sizeof pauses, &options, NULL);
        break;
    case WAIT:
        orbit_future_wait(future, NULL);
        break;
    case WAIT_TIMEOUT:
        orbit_future_wait_timeout(future, 100000000, NULL);
        break;
    case PULL:
        orbit_future_pull(future, &update);
        break;
    default:
        /* Until the queue has no room; each of these may be the one that blocks. */
        for (struct orbit_future *more; (more = begin(1)) != NULL;)
            orbit_future_free(more);
    }
    returned = 1;
    for (;;)
        pthread_testcancel();
    return unused;
}

/* Whether the orbit has begun to work on a call, and the thread that waits for it sleeps. */
static int is_blocked(pthread_t thread)
{
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 200000000;
    soon.tv_sec += soon.tv_nsec / 1000000000, soon.tv_nsec %= 1000000000;
    return pthread_timedjoin_np(thread, NULL, &soon) == ETIMEDOUT;
}

int main(void)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "pauses";
    options.entry = task;
    options.restart = ORBIT_RESTART_ALWAYS;
    CHECK((orbit = orbit_create_with(&options)));
    for (entry = CALL; entry < ENTRIES; entry++) {
        pthread_t thread;
        inside = returned = 0;
        CHECK(pthread_create(&thread, NULL, blocks, NULL) == 0);
        struct orbit_counters counters = {0};
        for (int tries = 0; tries < 10000 && (!inside || counters.pending == 0); tries++) {
            usleep(1000);
            GIVES(orbit_stats(orbit, &counters), 0);
        }
        CHECK(inside && counters.pending > 0);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(is_blocked(thread));
        if (entry == FULL_QUEUE) { /* a call that fails ends it */
            struct orbit *made = orbit;
            GIVES(orbit_destroy(made), 0);
        } else
            GIVES(orbit_kill(orbit), 0);
        void *end;
        CHECK(pthread_join(thread, &end) == 0);
        CHECK(end == PTHREAD_CANCELED && returned);
        if (entry == FULL_QUEUE)
            CHECK((orbit = orbit_create_with(&options)));
        int pauses = 0;
        struct orbit_outcome outcome;
        GIVES(orbit_call(orbit, 0, NULL, NULL, &pauses, sizeof pauses, &outcome), 0);
        GIVES(outcome.value, 7);
    }
    return 0;
}
