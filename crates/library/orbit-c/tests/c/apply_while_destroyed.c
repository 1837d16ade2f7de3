/* An update is applied whole or rejected while another thread destroys the area that it
 * modifies. */
#include "check.h"
#include <pthread.h>
#include <unistd.h>

enum { ITEMS = 60000, WORDS = 1000, ROUNDS = 60 };

static long modifies_much(void *store, void *args)
{
    char *words = *(char **)args;
    struct orbit_update *update = orbit_update_create();
    long one = 1;
    (void)store;
    for (int item = 0; item < ITEMS; item++)
        GIVES(orbit_update_add_modify(update, words + item % WORDS * sizeof one, &one, sizeof one), 0);
    GIVES(orbit_push(update), 0);
    GIVES(orbit_update_free(update), 0);
    return 0;
}

static pthread_barrier_t both;
static unsigned later_us;

static void *destroys(void *area)
{
    pthread_barrier_wait(&both);
    usleep(later_us);
    GIVES(orbit_area_destroy(area), 0);
    return NULL;
}

int main(void)
{
    struct orbit *orbit = orbit_create("modifies", modifies_much, NULL);
    int ends[2] = {0, 0};
    CHECK(orbit && pthread_barrier_init(&both, NULL, 2) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct orbit_area *area = orbit_area_create(1 << 20, NULL);
        char *words = orbit_calloc(area, WORDS, sizeof(long));
        CHECK(words);
        struct orbit_future *future = orbit_call_async(orbit, 0, 0, NULL, NULL, &words, sizeof words);
        struct orbit_update *update;
        GIVES(pull_orbit(future, &update), 1);
        later_us = (unsigned)round % 20 * 100;
        pthread_t other;
        CHECK(pthread_create(&other, NULL, destroys, area) == 0);
        pthread_barrier_wait(&both);
        int end = orbit_apply(update);
        CHECK(end == 0 || end == -EFAULT || end == -ENODEV);
        ends[end == 0]++;
        CHECK(pthread_join(other, NULL) == 0);
        GIVES(orbit_update_free(update), 0);
        GIVES(orbit_future_free(future), 0);
    }
    printf("%d refused, %d applied\n", ends[0], ends[1]);
    return 0;
}
