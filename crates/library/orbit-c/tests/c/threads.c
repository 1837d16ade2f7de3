/* Many threads allocate, call, free and destroy at once, each other's things too: answers or
 * errors, nothing else. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

static _Atomic(struct orbit *) orbits[4];
static _Atomic(struct orbit_future *) futures[8];
static struct orbit_area *area;
static atomic_long returned;

static long read_number(void *store, void *args)
{
    (void)store;
    return **(long **)args;
}

static void *client(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int i = 0; i < 400; i++) {
        long *number = orbit_alloc(area, sizeof *number);
        CHECK(number);
        *number = i;
        struct orbit *orbit = orbits[rand_r(&seed) % 4];
        struct orbit_outcome end;
        struct orbit_future *future;
        switch (rand_r(&seed) % 8) {
        case 0:
            if (i % 10 == 0) {
                struct orbit *fresh = orbit_create("fresh", read_number, NULL);
                CHECK(fresh);
                int destroyed = orbit_destroy(atomic_exchange(&orbits[rand_r(&seed) % 4], fresh));
                CHECK(destroyed == 0 || destroyed == -EBADF);
            }
            break;
        case 1:
        case 2:
            future = orbit_call_async(orbit, rand_r(&seed) % 3, 1, &area, NULL, &number, sizeof number);
            if (future != NULL) {
                int freed = orbit_future_free(atomic_exchange(&futures[rand_r(&seed) % 8], future));
                CHECK(freed == 0);
                orbit_future_wait(future, &end);
            }
            break;
        case 3: orbit_future_poll(futures[rand_r(&seed) % 8], &end); break;
        default:
            if (orbit_call(orbit, 1, &area, NULL, &number, sizeof number, &end) == 0) {
                CHECK(end.value == i);
                returned++;
            }
        }
        /* The waits above end before the object goes. */
        GIVES(orbit_free(number), 0);
    }
    return NULL;
}

int main(void)
{
    area = orbit_area_create(1 << 20, NULL);
    for (int i = 0; i < 4; i++)
        CHECK((orbits[i] = orbit_create("first", read_number, NULL)) != NULL);
    pthread_t threads[8];
    for (uintptr_t i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, client, (void *)(i + 1)) == 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 8; i++)
        GIVES(orbit_future_free(futures[i]), 0);
    for (int i = 0; i < 4; i++)
        GIVES(orbit_destroy(orbits[i]), 0);
    GIVES(orbit_area_destroy(area), 0);
    CHECK(returned > 100);
    return 0;
}
