/* A call made after orbit_kill has returned runs in the orbit's next process, whether the one that
 * was killed worked or idled. */
#include "check.h"

static long task(void *store, void *args)
{
    (void)store;
    while (*(int *)args)
        pause();
    return getpid();
}

int main(void)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "killed";
    options.entry = task;
    options.restart = ORBIT_RESTART_ALWAYS;
    struct orbit *orbit = orbit_create_with(&options);
    CHECK(orbit);
    int waits = 1, good = 0;
    struct orbit_outcome end;
    for (int round = 0; round < 100; round++) {
        GIVES(orbit_call(orbit, 0, NULL, NULL, &good, sizeof good, &end), 0);
        long before = end.value;
        struct orbit_future *running = NULL;
        if (round % 2)
            CHECK((running = orbit_call_async(orbit, 0, 0, NULL, NULL, &waits, sizeof waits)));
        GIVES(orbit_kill(orbit), 0);
        GIVES(orbit_call(orbit, 0, NULL, NULL, &good, sizeof good, &end), 0);
        CHECK(end.value != before);
        if (running) {
            GIVES(orbit_future_wait(running, &end), -EOWNERDEAD);
            GIVES(end.kind, ORBIT_KILLED);
            GIVES(orbit_future_free(running), 0);
        }
    }
    return 0;
}
