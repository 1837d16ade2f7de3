/* orbit_shutdown ends every process and thread of the library; handles held say so; afterwards
 * it may be used again. */
#include "check.h"
#include <pthread.h>
#include <unistd.h>

static long read_number(void *store, void *args)
{
    (void)store;
    return **(long **)args;
}

static long wait_for_ever(void *store, void *args)
{
    (void)store, (void)args;
    while (pause())
        ;
    return 0;
}

static long parent_of(long pid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    char *read = fgets(line, sizeof line, file);
    fclose(file);
    char *behind = read ? strrchr(line, ')') : NULL;
    char state = 0;
    long parent = 0;
    return behind && sscanf(behind + 1, " %c %ld", &state, &parent) == 2 && state != 'Z' ? parent : 0;
}

static void *make_and_use(void *stop)
{
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
        struct orbit *orbit = orbit_create("of a thread", read_number, NULL);
        if (orbit) {
            long number = 7, *at = &number;
            struct orbit_outcome end;
            int code = orbit_call(orbit, 0, NULL, read_number, &at, sizeof at, &end);
            (void)code; /* main's stack is not in an area: any end will do, none may hang */
            GIVES(orbit_destroy(orbit), 0);
        } else {
            /* The end may come between any two steps, and between shutdown and the next start
             * nobody is there. */
            CHECK(errno == ENODEV || errno == EHOSTDOWN || errno == EAGAIN);
            CHECK(*orbit_last_error());
        }
    }
    return NULL;
}

int main(void)
{
    GIVES(orbit_shutdown(), 0); /* nothing is set up */
    int threads = entries("/proc/self/task"), descriptors = entries("/proc/self/fd");
    struct orbit_area *area = orbit_area_create(4096, NULL);
    long *number = orbit_calloc(area, 1, sizeof *number);
    struct orbit_outcome end;
    for (int round = 0; round < 5; round++) {
        GIVES(orbit_init(), 0);
        struct orbit *orbit = orbit_create("one", read_number, NULL), *busy = orbit_create("busy", wait_for_ever, NULL);
        CHECK(orbit && busy);
        *number = round;
        GIVES(orbit_call(orbit, 1, &area, NULL, &number, sizeof number, &end), 0);
        CHECK(end.value == round);
        struct orbit_future *future = orbit_call_async(busy, 0, 1, &area, NULL, NULL, 0);
        CHECK(future);
        struct orbit_counters counters;
        GIVES(orbit_stats(orbit, &counters), 0);
        long pid = counters.pid, template = parent_of(pid);
        CHECK(pid > 0 && template > 1);
        GIVES(orbit_shutdown(), 0);
        CHECK(parent_of(pid) == 0 && parent_of(template) == 0);
        CHECK(threads_are_again(threads));
        GIVES(orbit_future_wait(future, &end), -ECANCELED);
        GIVES(orbit_call(orbit, 1, &area, NULL, &number, sizeof number, &end), -ENODEV);
        FAILS(orbit_call_async(orbit, 0, 0, NULL, NULL, NULL, 0), ENODEV);
        GIVES(orbit_wait_ready(orbit, 1000), -ENODEV);
        /* What is in areas stays. */
        CHECK(*number == round && orbit_free(orbit_alloc(area, 100)) == 0);
        GIVES(orbit_future_free(future), 0);
        GIVES(orbit_destroy(orbit), 0);
        GIVES(orbit_destroy(busy), 0);
        GIVES(orbit_shutdown(), 0);
    }
    GIVES(orbit_area_destroy(area), 0);
    /* The wiped page, the tracker of the kernel and the like are made once; nothing grows with
     * the rounds. */
    CHECK(entries("/proc/self/fd") <= descriptors + 4);

    /* While others make orbits. */
    pthread_t others[2];
    int stop = 0;
    for (int n = 0; n < 2; n++)
        CHECK(pthread_create(&others[n], NULL, make_and_use, &stop) == 0);
    for (int n = 0; n < 20; n++) {
        GIVES(orbit_shutdown(), 0);
        usleep(2000);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int n = 0; n < 2; n++)
        pthread_join(others[n], NULL);
    GIVES(orbit_shutdown(), 0);
    CHECK(threads_are_again(threads));
    return 0;
}
