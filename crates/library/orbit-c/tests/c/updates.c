/* Updates: checked, then applied whole or not at all. */
#include "check.h"

struct thing {
    long version;
    int cancel;
    int other;
};
static long wake(void *args, size_t len);
static long not_registered(void *args, size_t len)
{
    (void)args, (void)len;
    abort();
}
static int outside, woken;

enum what { WHOLE, STALE, FOREIGN, UNKNOWN_OPERATION, DATA, NOTHING };

static long work(void *store, void *argbuf)
{
    struct { struct thing *thing; enum what what; } *args = argbuf;
    struct thing *thing = args->thing;
    struct orbit_update *update = orbit_update_create();
    int one = 1, old = thing->cancel, stale = old + 5;
    (void)store;
    if (args->what == NOTHING)
        return 0;
    GIVES(orbit_update_add_data(update, &thing->version, sizeof thing->version), 0);
    if (args->what != DATA) {
        GIVES(orbit_update_add_modify(update, &thing->other, &one, sizeof one), 0);
        GIVES(orbit_update_add_modify_if(update, &thing->cancel, args->what == STALE ? &stale : &old, &one, sizeof one), 0);
        GIVES(orbit_update_add_operation(update, args->what == UNKNOWN_OPERATION ? not_registered : wake, "hello", 5), 0);
    }
    if (args->what == FOREIGN)
        GIVES(orbit_update_add_modify(update, &outside, &one, sizeof one), 0);
    GIVES(orbit_push(update), 0);
    GIVES(orbit_update_free(update), 0);
    return 5;
}

static long wake(void *args, size_t len)
{
    woken += len == 5 && memcmp(args, "hello", 5) == 0;
    return 0;
}

int main(void)
{
    struct orbit *orbit = orbit_create("updater", work, NULL);
    struct orbit_area *area = orbit_area_create(4096, NULL);
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "reader";
    options.entry = work;
    options.flags = ORBIT_DATA_ONLY;
    struct orbit *unprivileged = orbit_create_with(&options);
    CHECK(orbit && area && unprivileged);
    GIVES(orbit_register_operation(wake), 0);
    GIVES(orbit_register_operation(NULL), -EINVAL);
    struct thing *thing = orbit_calloc(area, 1, sizeof *thing);

    const int wanted[] = {0, -ESTALE, -EFAULT, -EACCES, 0};
    for (int is_unprivileged = 0; is_unprivileged < 2; is_unprivileged++)
        for (int what = WHOLE; what <= NOTHING; what++) {
            memset(thing, 0, sizeof *thing);
            thing->version = 77;
            woken = 0;
            struct { struct thing *thing; enum what what; } args = {thing, (enum what)what};
            struct orbit_future *future =
                orbit_call_async(is_unprivileged ? unprivileged : orbit, 0, 1, &area, NULL, &args, sizeof args);
            CHECK(future);
            struct orbit_update *update = NULL;
            struct orbit_outcome end;
            if (what != NOTHING) {
                GIVES(pull_orbit(future, &update), 1);
                const struct orbit_item *item = orbit_update_first(update);
                CHECK(item && item->kind == ORBIT_ITEM_DATA && item->size == sizeof(long));
                CHECK(memcmp(item->data, &thing->version, sizeof(long)) == 0);
                int items = 1;
                while ((item = orbit_update_next(update, item)) != NULL)
                    items++;
                CHECK(items == (what == DATA ? 1 : what == FOREIGN ? 5 : 4));
                FAILS(orbit_update_next(update, (struct orbit_item *)&end), EINVAL);
                GIVES(orbit_apply(update), is_unprivileged && what != DATA ? -EACCES : wanted[what]);
                int applied = what == WHOLE && !is_unprivileged;
                CHECK(thing->cancel == applied && thing->other == applied && woken == applied && outside == 0);
                /* Once more: the old bytes no longer stand there. */
                if (applied)
                    GIVES(orbit_apply(update), -ESTALE);
                GIVES(orbit_update_free(update), 0);
            }
            GIVES(pull_orbit(future, &update), 0);
            CHECK(update == NULL);
            GIVES(orbit_try_pull(future, &update), 0);
            GIVES(orbit_future_wait(future, &end), 0);
            CHECK(end.value == (what == NOTHING ? 0 : 5));
            GIVES(orbit_future_free(future), 0);
            GIVES(orbit_future_free(future), -EBADF);
        }
    GIVES(orbit_unregister_operation(wake), 0);
    GIVES(orbit_unregister_operation(wake), -ENOENT);
    GIVES(orbit_destroy(orbit), 0);
    GIVES(orbit_destroy(unprivileged), 0);
    return 0;
}
