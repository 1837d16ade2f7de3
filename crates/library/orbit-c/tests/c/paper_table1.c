/* Every function of the paper's Table 1, called with the arguments that it prints. */
#include <orbit_paper.h>

#include <stdio.h>

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, orbit_last_error()); \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

struct sum {
    long *values;
    int count;
};
struct book {
    long calls;
};

static void *open_book(void)
{
    return calloc(1, sizeof(struct book));
}

/* Arguments come first, then the store. */
static long add(void *argbuf, void *store)
{
    struct sum *sum = argbuf;
    struct book *book = store;
    long total = 0;
    for (int i = 0; i < sum->count; i++)
        total += sum->values[i];
    book->calls++;
    return total;
}

static long calls_so_far(void *argbuf, void *store)
{
    return argbuf == NULL ? ((struct book *)store)->calls : -1;
}

static long crashes(void *argbuf, void *store)
{
    (void)argbuf, (void)store;
    abort();
}

static long reports(void *argbuf, void *store)
{
    (void)store;
    struct sum *sum = argbuf;
    for (int i = 0; i < sum->count; i++) {
        orbit_update *update = orbit_update_create();
        if (orbit_update_add_data(update, &sum->values[i]) < 0 || orbit_update_add_data(update, "xyz", 3) < 0 ||
            orbit_push(update, NULL) != 0)
            return -1;
    }
    return sum->count;
}

int main(void)
{
    orbit *ob = orbit_create("adder", add, open_book);
    CHECK(ob != NULL);
    orbit_area *area = orbit_area_create(4096, ob);
    CHECK(area != NULL);
    long *values = orbit_alloc(area, 3 * sizeof *values);
    CHECK(values != NULL);
    values[0] = 4, values[1] = 5, values[2] = -20;
    struct sum sum = { values, 3 };

    errno = EIO;
    CHECK(orbit_call(ob, 1, &area, NULL, &sum, sizeof sum) == -11 && errno == 0);
    CHECK(orbit_call(ob, 1, &area, calls_so_far, NULL, 0) == 1);
    CHECK(orbit_call(ob, 1, &area, crashes, NULL, 0) == -EREMOTEIO && errno == EREMOTEIO);
    CHECK(strstr(orbit_last_error(), "SIGABRT") != NULL);
    CHECK(orbit_call(ob, 1, &area, calls_so_far, NULL, 0) == 0);

    orbit_future *f = orbit_call_async(ob, ORBIT_INCREMENTAL, 1, &area, reports, &sum, sizeof sum);
    CHECK(f != NULL);
    values[1] = 6;
    long seen = 0, wanted[] = { 4, 5, -20 };
    orbit_update update;
    while (pull_orbit(f, &update) == 1) {
        const struct orbit_paper_item *item = orbit_update_first(update);
        CHECK(item != NULL && item->size == sizeof(long) && seen < 3 && *(long *)item->data == wanted[seen]);
        item = orbit_update_next(update, item);
        CHECK(item != NULL && item->size == 3 && memcmp(item->data, "xyz", 3) == 0);
        CHECK(orbit_update_next(update, item) == NULL);
        seen++;
    }
    CHECK(seen == 3 && orbit_update_first(update) == NULL && orbit_future_get(f) == 3);

    /* Pulled updates stay no longer than their future: a million would be too many. */
    sum.count = 1;
    for (int i = 0; i < 2000; i++) {
        orbit_future *one = orbit_call_async(ob, 0, 1, &area, reports, &sum, sizeof sum);
        CHECK(one != NULL && pull_orbit(one, &update) == 1);
        orbit_paper_update old = update;
        CHECK(pull_orbit(one, &update) == 0 && orbit_update_first(old) != NULL);
        CHECK(orbit_future_free(one) == 0 && orbit_update_first(old) == NULL);
    }
    CHECK(orbit_future_free(f) == 0 && orbit_destroy(ob) == 0);
    CHECK(orbit_call(ob, 1, &area, NULL, &sum, sizeof sum) == -EBADF);
    return 0;
}
