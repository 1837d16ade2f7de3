/* A call that finds no room ends at its deadline, and was not made. */
#include "check.h"
#include <pthread.h>
#include <unistd.h>

static long hangs(void *store, void *args)
{
    (void)store, (void)args;
    while (pause() != 0)
        ;
    return 0;
}

static struct orbit *orbit;
static volatile int called;

static void *calls(void *given)
{
    const struct orbit_call_options *options = given;
    struct orbit_outcome end;
    GIVES(orbit_call_with(orbit, 0, NULL, NULL, 0, options, &end), -ETIMEDOUT);
    CHECK(end.kind == ORBIT_PENDING && strstr(orbit_last_error(), "room"));
    FAILS(orbit_call_async_with(orbit, 0, NULL, NULL, 0, options), ETIMEDOUT);
    called = 1;
    return NULL;
}

int main(void)
{
    enum { QUEUE = 256 };
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    struct orbit_counters counters;
    pthread_t caller;
    orbit = orbit_create("hangs", hangs, NULL);
    CHECK(orbit);
    for (int call = 0; call < QUEUE; call++)
        CHECK(orbit_call_async(orbit, 0, 0, NULL, NULL, NULL, 0));
    options.deadline_us = 100000;
    CHECK(pthread_create(&caller, NULL, calls, &options) == 0);
    for (int waited = 0; !called && waited < 30000; waited++)
        usleep(1000);
    CHECK(called);
    GIVES(orbit_stats(orbit, &counters), 0);
    CHECK(counters.calls == QUEUE && counters.pending == QUEUE && counters.crashes == 0);
    CHECK(pthread_join(caller, NULL) == 0);
    GIVES(orbit_destroy(orbit), 0);
    return 0;
}
