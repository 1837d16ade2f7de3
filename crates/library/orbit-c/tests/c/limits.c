/* A task that uses more memory than it may ends its call with ORBIT_OUT_OF_MEMORY; limits can be
 * changed; main lives. */
#include "check.h"
#include <sys/resource.h>

static long use_memory(void *store, void *args)
{
    size_t bytes = *(size_t *)args;
    (void)store;
    for (size_t got = 0; got < bytes; got += 1 << 20) {
        char *more = malloc(1 << 20);
        if (more == NULL)
            abort();
        memset(more, 1, 1 << 20);
    }
    return 1;
}

int main(void)
{
    struct orbit_limits limits = ORBIT_LIMITS_INIT;
    limits.memory = 48 << 20;
    uint32_t cpus[] = {0};
    limits.set_nice = 1;
    limits.nice = getpriority(PRIO_PROCESS, 0) + 3; /* below its own a user may not */
    if (limits.nice > 19)
        limits.nice = 19;
    limits.cpu_percent = 80;
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "glutton";
    options.entry = use_memory;
    options.limits = &limits;
    options.restart = ORBIT_RESTART_ALWAYS;
    options.pending = ORBIT_PENDING_KEEP;
    struct orbit *orbit = orbit_create_with(&options);
    CHECK(orbit);
    struct orbit_outcome end;
    size_t little = 8 << 20, much = 400 << 20;
    for (int round = 0; round < 3; round++) {
        GIVES(orbit_call(orbit, 0, NULL, NULL, &little, sizeof little, &end), 0);
        CHECK(end.value == 1);
        GIVES(orbit_call(orbit, 0, NULL, NULL, &much, sizeof much, &end), -ENOMEM);
        CHECK(end.kind == ORBIT_OUT_OF_MEMORY);
    }
    limits.cpus = cpus;
    limits.cpu_count = 1;
    limits.memory = 96 << 20;
    int changed = orbit_set_limits(orbit, &limits);
    /* CPU 0 may not be this program's. */
    CHECK(changed == 0 || changed == -EINVAL);
    GIVES(orbit_call(orbit, 0, NULL, NULL, &little, sizeof little, &end), 0);
    GIVES(orbit_destroy(orbit), 0);
    return 0;
}
