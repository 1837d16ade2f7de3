/* Pauses and times as long as numbers can say: none of them ends the supervision of this orbit
 * or of others. */
#include "check.h"
#include <stdint.h>
#include <unistd.h>

static long dies(void *store, void *args)
{
    (void)store, (void)args;
    abort();
}

static long nine(void *store, void *args)
{
    (void)store, (void)args;
    return 9;
}

/* Tries a call until the orbit takes it, up to a minute; gives how it ended. */
static int calls(struct orbit *orbit)
{
    struct orbit_outcome end;
    int tries = 0, got;
    while ((got = orbit_call(orbit, 0, NULL, NULL, NULL, 0, &end)) == -EHOSTDOWN && tries++ < 60000)
        usleep(1000);
    return got;
}

int main(void)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    struct orbit_outcome end;
    options.entry = dies;
    options.first_pause_us = UINT64_MAX;
    options.longest_pause_us = 1;
    struct orbit *short_pauses = orbit_create_with(&options);
    struct orbit *other = orbit_create("other", nine, NULL);
    CHECK(short_pauses && other);
    alarm(100);
    for (int crash = 0; crash < 30; crash++)
        GIVES(calls(short_pauses), -EREMOTEIO);
    options.longest_pause_us = UINT64_MAX;
    struct orbit *long_pauses = orbit_create_with(&options);
    CHECK(long_pauses);
    for (int crash = 0; crash < 4; crash++)
        GIVES(calls(long_pauses), -EREMOTEIO);
    /* It is down for ages now. The others are not. */
    GIVES(orbit_call(long_pauses, 0, NULL, NULL, NULL, 0, &end), -EHOSTDOWN);
    struct orbit_call_options ages = ORBIT_CALL_OPTIONS_INIT;
    ages.deadline_us = UINT64_MAX;
    GIVES(orbit_call_with(other, 0, NULL, NULL, 0, &ages, &end), 0);
    for (int kill = 0; kill < 3; kill++) {
        int pid, tries = 0;
        struct orbit_counters now;
        GIVES(orbit_stats(other, &now), 0);
        pid = now.pid;
        GIVES(orbit_kill(other), 0);
        do {
            usleep(1000);
            GIVES(orbit_stats(other, &now), 0);
        } while ((now.pid == pid || now.pid == 0) && tries++ < 60000);
        GIVES(calls(other), 0);
    }
    GIVES(calls(short_pauses), -EREMOTEIO);
    return 0;
}
