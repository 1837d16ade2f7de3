/* An area of ORBIT_ENGINE_SHARE: a program of one thread needs to say nothing, whatever it writes
 * beside its calls; one with more says ORBIT_QUIET, or learns that it should. */
#include "check.h"
#include <pthread.h>

enum { PAGES = 2000, WORDS = 4096 / sizeof(long) };

struct range {
    long *base;
    long pages;
};

static long sum(void *store, void *args)
{
    (void)store;
    struct range *range = args;
    long total = 0;
    for (long page = 0; page < range->pages; page++) {
        total += range->base[page * WORDS];
        range->base[page * WORDS] = -1;
    }
    return total;
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

static void *waits(void *unused)
{
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
    return unused;
}

static struct orbit *orbit;
static struct orbit_area *area;
static long *base, truth;

/* Writes to every page, while a call runs that sees none of it. Gives what the next call does. */
static int round_of_calls(long value, int flags, struct orbit_outcome *end)
{
    struct range range = { base, PAGES };
    long before = truth;
    struct orbit_future *future = orbit_call_async(orbit, flags, 1, &area, NULL, &range, sizeof range);
    CHECK(future != NULL);
    for (long page = 0; page < PAGES; page++) {
        truth += value - base[page * WORDS];
        base[page * WORDS] = value;
    }
    GIVES(orbit_future_wait(future, end), 0);
    GIVES(end->value, before);
    orbit_future_free(future);
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    options.flags = flags;
    return orbit_call_with(orbit, 1, &area, &range, sizeof range, &options, end);
}

int main(void)
{
    CHECK(orbit_init() == 0);
    struct orbit_area_options options = ORBIT_AREA_OPTIONS_INIT;
    options.engine = ORBIT_ENGINE_SHARE;
    options.init_size = 16 << 20;
    area = orbit_area_create_with(&options);
    if (area == NULL && errno == EOPNOTSUPP) {
        printf("SKIP: needs mremap with MREMAP_DONTUNMAP of files: %s\n", orbit_last_error());
        return 0;
    }
    CHECK(area != NULL);
    base = orbit_aligned_alloc(area, 4096, PAGES * 4096L);
    CHECK(base != NULL);
    memset(base, 0, PAGES * 4096L);
    orbit = orbit_create("sums", sum, NULL);
    CHECK(orbit != NULL);
    struct orbit_outcome end;
    for (long value = 1; value < 30; value++) {
        GIVES(round_of_calls(value, 0, &end), 0);
        GIVES(end.value, truth);
    }
    struct orbit_counters counters;
    CHECK(orbit_stats(orbit, &counters) == 0 && counters.pages == 0);

    /* The kernel may write at any time for an io_uring: the program has to say. */
    char parameters[120] = { 0 };
    long ring = syscall(425 /* io_uring_setup */, 4, parameters);
    if (ring < 0) {
        printf("SKIP: needs io_uring_setup: %s\n", strerror(errno));
    } else {
        GIVES(round_of_calls(50, 0, &end), -ENOSPC);
        close((int)ring);
        GIVES(round_of_calls(51, 0, &end), 0);
        GIVES(end.value, truth);
    }

    pthread_t thread;
    pthread_mutex_lock(&held);
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    GIVES(round_of_calls(100, 0, &end), -ENOSPC);
    CHECK(strstr(orbit_last_error(), "quiet") != NULL);
    GIVES(orbit_area_merge(area), 0);
    struct range range = { base, PAGES };
    GIVES(orbit_call(orbit, 1, &area, NULL, &range, sizeof range, &end), 0);
    GIVES(end.value, truth);
    GIVES(orbit_area_merge(area), 0);
    for (long value = 200; value < 230; value++) {
        GIVES(round_of_calls(value, ORBIT_QUIET, &end), 0);
        GIVES(end.value, truth);
    }
    for (long page = 0; page < PAGES; page++)
        CHECK(base[page * WORDS] == 229);
    pthread_mutex_unlock(&held);
    pthread_join(thread, NULL);
    CHECK(orbit_destroy(orbit) == 0 && orbit_area_destroy(area) == 0);
    return 0;
}
