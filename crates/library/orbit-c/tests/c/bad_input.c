/* Bad input of every kind gives a clear error and costs nothing: afterwards a call still works. */
#include "check.h"
#include <limits.h>
#include <stdint.h>
#include <sys/mman.h>

static long forty_two(void *store, void *args)
{
    (void)store, (void)args;
    return orbit_is_orbit() ? 42 : 0;
}

/* What only main may do, tried in an orbit. */
static long meddle(void *store, void *args)
{
    struct { struct orbit *orbit; struct orbit_area *area; void *object; } *mains = args;
    (void)store;
    long faults = 0;
    faults += orbit_alloc(mains->area, 8) != NULL || errno != EPERM;
    faults += orbit_area_create(1, NULL) != NULL || errno != EPERM;
    faults += orbit_create("x", forty_two, NULL) != NULL || errno != EPERM;
    faults += orbit_free(mains->object) != -EPERM;
    faults += orbit_call(mains->orbit, 0, NULL, NULL, NULL, 0, NULL) != -EPERM;
    faults += orbit_destroy(mains->orbit) != -EPERM;
    faults += orbit_init() != -EPERM;
    faults += orbit_shutdown() != -EPERM;
    return faults;
}

int main(void)
{
    struct orbit *orbit = orbit_create(NULL, forty_two, NULL);
    struct orbit_area *area = orbit_area_create(0, NULL);
    struct orbit_outcome end;
    CHECK(orbit && area);
    int local = 0;
    void *wrong[] = {&local, (void *)1, (void *)-1, (void *)0xdeadbeefdeadbeef, malloc(8), area};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct orbit *o = wrong[i];
        struct orbit_future *f = wrong[i];
        struct orbit_update *u = wrong[i], *got;
        GIVES(orbit_destroy(o), -EBADF);
        GIVES(orbit_kill(o), -EBADF);
        GIVES(orbit_wait_ready(o, 0), -EBADF);
        GIVES(orbit_set_limits(o, NULL), -EBADF);
        GIVES(orbit_detach(o, area), -EBADF);
        struct orbit_counters counters;
        GIVES(orbit_stats(o, &counters), -EBADF);
        GIVES(orbit_cancel_args(o, NULL, 0), -EBADF);
        GIVES(orbit_call(o, 0, NULL, NULL, NULL, 0, &end), -EBADF);
        FAILS(orbit_call_async(o, 0, 0, NULL, NULL, NULL, 0), EBADF);
        GIVES(orbit_future_wait(f, &end), -EBADF);
        GIVES(orbit_future_wait_timeout(f, 1, &end), -EBADF);
        GIVES(orbit_future_poll(f, &end), -EBADF);
        GIVES(orbit_future_fd(f), -EBADF);
        GIVES(orbit_future_cancel(f), -EBADF);
        GIVES(orbit_future_free(f), -EBADF);
        GIVES(pull_orbit(f, &got), -EBADF);
        GIVES(orbit_try_pull(f, &got), -EBADF);
        GIVES(orbit_pull(o, &got), -EBADF);
        GIVES(orbit_update_add_data(u, "x", 1), -EBADF);
        GIVES(orbit_update_free(u), -EBADF);
        GIVES(orbit_push(u), -EBADF);
        GIVES(orbit_apply(u), -EBADF);
        FAILS(orbit_update_first(u), EBADF);
        if (wrong[i] != (void *)area) {
            struct orbit_area *a = wrong[i];
            GIVES(orbit_area_destroy(a), -EBADF);
            FAILS(orbit_alloc(a, 8), EBADF);
            FAILS(orbit_realloc(a, NULL, 8), EBADF);
            GIVES(orbit_call(orbit, 1, &a, NULL, NULL, 0, &end), -EBADF);
            GIVES(orbit_free(wrong[i]), -EFAULT);
            CHECK(orbit_usable_size(wrong[i]) == 0);
        }
    }
    GIVES(orbit_destroy(NULL), -EINVAL);
    GIVES(orbit_area_destroy(NULL), -EINVAL);
    GIVES(orbit_future_wait(NULL, &end), -EINVAL);
    GIVES(orbit_future_free(NULL), 0);
    GIVES(orbit_update_free(NULL), 0);
    GIVES(orbit_free(NULL), 0);
    CHECK(orbit_usable_size(NULL) == 0);
    GIVES(orbit_will_write(NULL, 1), -EFAULT);
    GIVES(orbit_stats(orbit, NULL), -EINVAL);
    GIVES(pull_orbit(NULL, NULL), -EINVAL);

    /* Arguments and lists. */
    GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 8, &end), -EINVAL);
    GIVES(orbit_call(orbit, 0, NULL, NULL, (void *)8, 8, &end), -EFAULT);
    GIVES(orbit_call(orbit, 0, NULL, NULL, (void *)(UINTPTR_MAX - 7), 8, &end), -EFAULT);
    GIVES(orbit_call(orbit, 0, NULL, NULL, &local, SIZE_MAX, &end), -E2BIG);
    GIVES(orbit_call(orbit, 3, NULL, NULL, NULL, 0, &end), -EINVAL);
    GIVES(orbit_call(orbit, SIZE_MAX, &area, NULL, NULL, 0, &end), -E2BIG);
    FAILS(orbit_call_async(orbit, 3, 0, NULL, NULL, NULL, 0), EINVAL);
    FAILS(orbit_call_async(orbit, 64, 0, NULL, NULL, NULL, 0), EINVAL);
    FAILS(orbit_create("none", NULL, NULL), EINVAL);
    FAILS(orbit_create("data", (orbit_entry)(void *)&local, NULL), EINVAL);
    FAILS(orbit_create("nowhere", (orbit_entry)(uintptr_t)0x10, NULL), EINVAL);
    GIVES(orbit_call(orbit, 0, NULL, (orbit_entry)(uintptr_t)0x10, NULL, 0, &end), -EINVAL);

    /* Places for an outcome: rejected before a call is made, which the count of calls shows. */
    struct orbit_future *ended = orbit_call_async(orbit, 0, 0, NULL, NULL, NULL, 0);
    CHECK(ended);
    GIVES(orbit_future_wait(ended, NULL), 0);
    struct orbit_call_options plain = ORBIT_CALL_OPTIONS_INIT;
    struct orbit_counters before, after;
    GIVES(orbit_stats(orbit, &before), 0);
    uintptr_t user_end = (uintptr_t)1 << 47;
    uintptr_t nowhere[] = {8, 0xffff800000000000, UINTPTR_MAX - 7, (uintptr_t)1 << 63, 0xffffffffff600000};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        struct orbit_outcome *to = (void *)nowhere[i];
        GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 0, to), -EFAULT);
        CHECK(strstr(orbit_last_error(), "outcome"));
        GIVES(orbit_call_with(orbit, 0, NULL, NULL, 0, &plain, to), -EFAULT);
        GIVES(orbit_future_wait(ended, to), -EFAULT);
        GIVES(orbit_future_wait_timeout(ended, 1, to), -EFAULT);
        GIVES(orbit_future_poll(ended, to), -EFAULT);
        GIVES(orbit_call(orbit, 0, NULL, NULL, to, 16, &end), -EFAULT);
    }
    /* Beyond 47 bits there is memory with five levels of page tables only. */
    void *above = mmap((void *)(user_end << 3), 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(above != MAP_FAILED);
    if ((uintptr_t)above < user_end) {
        GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 0, (void *)(user_end - 4096)), -EFAULT);
        GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 0, (void *)(user_end - 4096 - 16)), -EFAULT);
        GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 0, (void *)(user_end << 3)), -EFAULT);
        GIVES(orbit_call(orbit, 0, NULL, NULL, (void *)(user_end << 3), 16, &end), -EFAULT);
    }
    GIVES(orbit_stats(orbit, &after), 0);
    CHECK(before.calls == after.calls);
    GIVES(orbit_call(orbit, 0, NULL, NULL, above, 16, above), 0);
    munmap(above, 4096);

    /* Structures: no size, an unknown choice, from a newer program. */
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.entry = forty_two;
    options.size = 0;
    FAILS(orbit_create_with(&options), EINVAL);
    FAILS(orbit_create_with(NULL), EINVAL);
    options.size = sizeof options;
    options.restart = 17;
    FAILS(orbit_create_with(&options), EINVAL);
    struct { struct orbit_options now; long later; } newer = {ORBIT_OPTIONS_INIT, 1};
    newer.now.entry = forty_two;
    newer.now.size = sizeof newer;
    FAILS(orbit_create_with(&newer.now), E2BIG);
    newer.later = 0;
    struct orbit *fits = orbit_create_with(&newer.now);
    CHECK(fits);
    GIVES(orbit_destroy(fits), 0);
    struct orbit_limits limits = ORBIT_LIMITS_INIT;
    limits.memory = 1;
    GIVES(orbit_set_limits(orbit, &limits), -EINVAL);
    struct orbit_config config = ORBIT_CONFIG_INIT;
    GIVES(orbit_init_with(&config), -EINVAL); /* too late */

    /* Objects. */
    struct orbit_area_options tight = ORBIT_AREA_OPTIONS_INIT;
    tight.name = "tight";
    tight.limit = 1 << 16;
    struct orbit_area *full = orbit_area_create_with(&tight);
    CHECK(full);
    char *object = orbit_alloc(full, 100), *more;
    int count = 0;
    while ((more = orbit_alloc(full, 1000)) != NULL)
        CHECK(++count < 1000);
    CHECK(errno == ENOSPC && strstr(orbit_last_error(), "tight") && strstr(orbit_last_error(), "64 KiB"));
    FAILS(orbit_alloc(full, SIZE_MAX), E2BIG);
    FAILS(orbit_calloc(full, SIZE_MAX / 2, 3), E2BIG);
    FAILS(orbit_aligned_alloc(full, 3, 8), EINVAL);
    CHECK(orbit_usable_size(object) >= 100);
    GIVES(orbit_will_write(object, 100), 0);
    GIVES(orbit_will_write(object, SIZE_MAX), -EFAULT);
    GIVES(orbit_will_write(&count, sizeof count), -EFAULT);
    GIVES(orbit_free(object + 1), -EINVAL);
    GIVES(orbit_free(object), 0);
    GIVES(orbit_free(object), -EALREADY);
    CHECK((object = orbit_calloc(full, 10, 4)) != NULL && object[0] == 0);
    CHECK((object = orbit_realloc(full, object, 30)) != NULL && object[29] == 0);
    FAILS(orbit_area_adopt(NULL, 4096), EINVAL);
    FAILS(orbit_area_adopt(&local, 4), EINVAL);
    tight.engine = 77;
    FAILS(orbit_area_create_with(&tight), EINVAL);
    GIVES(orbit_area_destroy(full), 0);
    GIVES(orbit_area_destroy(full), -EBADF);
    FAILS(orbit_alloc(full, 8), EBADF);
    GIVES(orbit_call(orbit, 1, &full, NULL, NULL, 0, &end), -EBADF);

    /* Wrong side. */
    struct { struct orbit *orbit; struct orbit_area *area; void *object; } mains = {orbit, area, orbit_alloc(area, 8)};
    GIVES(orbit_call(orbit, 1, &area, meddle, &mains, sizeof mains, &end), 0);
    CHECK(end.value == 0);
    struct orbit_update *update = orbit_update_create();
    GIVES(orbit_register_operation(NULL), -EINVAL);
    GIVES(orbit_register_operation((orbit_operation)0x10), -EFAULT);
    GIVES(orbit_register_operation((orbit_operation)(UINTPTR_MAX - 10)), -EFAULT);
    GIVES(orbit_unregister_operation((orbit_operation)0x10), -ENOENT);
    GIVES(orbit_push(update), -EPERM);
    GIVES(orbit_apply(update), -EINVAL);
    GIVES(orbit_update_free(update), 0);
    GIVES(orbit_update_free(update), -EBADF);

    GIVES(orbit_call(orbit, 1, &area, NULL, NULL, 0, &end), 0);
    CHECK(end.value == 42);
    GIVES(orbit_destroy(orbit), 0);
    GIVES(orbit_destroy(orbit), -EBADF);
    GIVES(orbit_call(orbit, 1, &area, NULL, NULL, 0, &end), -EBADF);
    CHECK(strstr(orbit_last_error(), "destroyed") && strlen(orbit_strerror(-EBADF)) > 0);
    CHECK(strcmp(orbit_strerror(EBADF), orbit_strerror(-EBADF)) == 0);
    CHECK(strstr(orbit_strerror(INT_MAX), "2147483647") && strstr(orbit_strerror(-INT_MAX), " 2147483647"));
    CHECK(strstr(orbit_strerror(INT_MIN), "-2147483648"));
    free(wrong[4]);
    return 0;
}
