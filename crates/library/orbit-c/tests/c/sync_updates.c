/* Updates of a synchronous call wait at its orbit: in order, however the call ended, and without
 * growing for ever. */
#include "check.h"

static long push_some(void *store, void *args)
{
    int count = *(int *)args;
    (void)store;
    for (int n = 0; n < count; n++) {
        struct orbit_update *update = orbit_update_create();
        GIVES(orbit_update_add_data(update, &n, sizeof n), 0);
        GIVES(orbit_push(update), 0);
        GIVES(orbit_update_free(update), 0);
    }
    return count;
}

static long push_and_die(void *store, void *args)
{
    push_some(store, args);
    abort();
}

static long push_much(void *store, void *args)
{
    static char much[600 << 10];
    struct orbit_update *update = orbit_update_create();
    (void)store;
    much[0] = *(char *)args;
    GIVES(orbit_update_add_data(update, much, sizeof much), 0);
    GIVES(orbit_push(update), 0);
    return 0;
}

static int first_byte(struct orbit *orbit)
{
    struct orbit_update *update;
    GIVES(orbit_pull(orbit, &update), 1);
    int byte = *(const char *)orbit_update_first(update)->data;
    GIVES(orbit_update_free(update), 0);
    return byte;
}

int main(void)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "pusher";
    options.entry = push_some;
    options.restart = ORBIT_RESTART_ALWAYS;
    options.pending = ORBIT_PENDING_KEEP;
    struct orbit *orbit = orbit_create_with(&options);
    struct orbit_outcome end;
    struct orbit_update *update;
    CHECK(orbit);
    GIVES(orbit_pull(orbit, &update), 0);
    CHECK(update == NULL);
    int count = 40;
    GIVES(orbit_call(orbit, 0, NULL, NULL, &count, sizeof count, &end), 0);
    for (int n = 0; n < count; n++)
        CHECK(first_byte(orbit) == n);
    GIVES(orbit_pull(orbit, &update), 0);

    /* A call that ends badly; and one with options. */
    count = 3;
    GIVES(orbit_call(orbit, 0, NULL, push_and_die, &count, sizeof count, &end), -EREMOTEIO);
    struct orbit_call_options call = ORBIT_CALL_OPTIONS_INIT;
    GIVES(orbit_call_with(orbit, 0, NULL, &count, sizeof count, &call, &end), 0);
    for (int n = 0; n < 2 * count; n++)
        CHECK(first_byte(orbit) == n % count);

    /* Those of a future stay the future's. */
    struct orbit_future *future = orbit_call_async(orbit, 0, 0, NULL, NULL, &count, sizeof count);
    GIVES(orbit_future_wait(future, &end), 0);
    GIVES(orbit_pull(orbit, &update), 0);
    GIVES(pull_orbit(future, &update), 1);
    GIVES(orbit_update_free(update), 0);
    GIVES(orbit_future_free(future), 0);

    /* Nobody pulls: the newest is kept, the others are counted. */
    for (char n = 0; n < 5; n++)
        GIVES(orbit_call(orbit, 0, NULL, push_much, &n, 1, &end), 0);
    struct orbit_counters counters;
    GIVES(orbit_stats(orbit, &counters), 0);
    CHECK(counters.dropped_updates == 4 && counters.bad_updates == 0);
    CHECK(first_byte(orbit) == 4);
    GIVES(orbit_pull(orbit, &update), 0);
    GIVES(orbit_destroy(orbit), 0);
    GIVES(orbit_pull(orbit, &update), -EBADF);
    return 0;
}
