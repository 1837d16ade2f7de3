/* A heap of jemalloc in areas: a task reads what malloc made, as it was at the call, also after
 * the heap grew; it allocates outside. */
#include "check.h"
#include <orbit_jemalloc.h>

#define ITEMS 20000

struct item {
    struct item *next;
    char *text;
};

struct wanted {
    struct item *first;
    struct orbit_jemalloc *heap;
};

static struct orbit_jemalloc heap;

static struct item *add(struct item *next, int number, size_t size)
{
    struct item *item = malloc(sizeof *item);
    item->text = calloc(1, size);
    snprintf(item->text, size, "%d", number);
    item->next = next;
    return item;
}

static long sum(const struct item *item)
{
    long sum = 0;
    for (; item; item = item->next)
        sum += atoi(item->text);
    return sum;
}

static long sum_task(void *store, void *args)
{
    const struct wanted *wanted = args;
    long sums = sum(wanted->first);
    (void)store;
    /* Of its own, small and large. */
    for (size_t size = 16; size < 4 << 20; size *= 2) {
        char *own = malloc(size);
        if (!own || orbit_jemalloc_has(wanted->heap, own))
            return -1;
        memset(own, 1, size);
        free(own);
    }
    return sums;
}

int main(void)
{
    struct item *first = NULL;
    struct orbit_outcome end;
    struct orbit *orbit;
    struct orbit_future *future;
    long expected;
    int error = orbit_jemalloc_init(&heap);
    if (error == -EOPNOTSUPP) {
        printf("SKIP: needs jemalloc 5\n");
        return 0;
    }
    GIVES(error, 0);
    for (int i = 0; i < ITEMS; i++)
        first = add(first, i, 32);
    CHECK(orbit_jemalloc_has(&heap, first) && orbit_jemalloc_has(&heap, first->text));
    GIVES(orbit_jemalloc_leave(), 0);
    orbit = orbit_create("sum", sum_task, NULL);
    CHECK(orbit);
    GIVES(orbit_jemalloc_enter(&heap), 0);
    for (int round = 0; round < 3; round++) {
        struct wanted wanted = {first, &heap};
        const size_t regions = heap.region_count;
        GIVES(orbit_jemalloc_adopt(&heap), 0);
        CHECK(heap.area_count == regions);
        expected = sum(first);
        future = orbit_call_async(orbit, 0, heap.area_count, heap.areas, NULL, &wanted, sizeof wanted);
        CHECK(future);
        /* Changed after the call: not seen. Freed memory is used again. */
        for (int i = 0; i < ITEMS / 4; i++) {
            struct item *old = first;
            first = old->next;
            free(old->text);
            free(old);
        }
        for (int i = 0; i < ITEMS / 4; i++)
            first = add(first, 7 * i, 48);
        GIVES(orbit_future_wait(future, &end), 0);
        GIVES(end.value, expected);
        orbit_future_free(future);
        /* Beyond the region. */
        for (int grown = 0; heap.region_count == regions; grown++) {
            CHECK(grown < 200);
            first = add(first, round, 1 << 20);
        }
    }
    return 0;
}
