/* A call that is not done at its deadline says where its task was; one that had not begun says
 * that. A task that holds SIGABRT back is killed a second later. */
#include "check.h"
#include <signal.h>
#include <time.h>

static volatile int always = 1;

__attribute__((noinline)) static void sleeps_here(void)
{
    while (always)
        pause();
}

static long late(void *store, void *args)
{
    (void)store;
    if (*(int *)args) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
    }
    sleeps_here();
    return 1;
}

int main(void)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "late";
    options.entry = late;
    options.deadline_us = 300000;
    options.restart = ORBIT_RESTART_ALWAYS;
    struct orbit *orbit = orbit_create_with(&options);
    CHECK(orbit);
    struct orbit_outcome end;
    int frames = 0;
    /* On a loaded machine the process may not have come to the task by then. */
    for (int round = 0; round < 20 && frames < 2; round++) {
        int blocks = 0;
        GIVES(orbit_call(orbit, 0, NULL, NULL, &blocks, sizeof blocks, &end), -ETIMEDOUT);
        CHECK(end.kind == ORBIT_TIMED_OUT && strstr(end.text, "not done at its deadline"));
        frames = end.frame_count;
    }
    CHECK(frames >= 2);
    int blocks = 1;
    struct orbit_future *held = orbit_call_async(orbit, 0, 0, NULL, NULL, &blocks, sizeof blocks);
    struct orbit_future *behind = orbit_call_async(orbit, 0, 0, NULL, NULL, &blocks, sizeof blocks);
    CHECK(held && behind);
    GIVES(orbit_future_wait(behind, &end), -ETIMEDOUT);
    CHECK(strstr(end.text, "before it had begun") && end.frame_count == 0);
    GIVES(orbit_future_wait(held, &end), -ETIMEDOUT);
    CHECK(end.kind == ORBIT_TIMED_OUT);
    return 0;
}
