/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * orbit_jemalloc.h: the heap of a program that uses jemalloc 5, in areas.
 *
 * All that a thread allocates by malloc, calloc, strdup, new comes from an arena of jemalloc whose
 * memory can be shown to orbits: no allocation point needs a change. For tasks that read so much of
 * a program that naming its objects one by one is no use.
 *
 *     static struct orbit_jemalloc heap;
 *     int main(void) {
 *         orbit_jemalloc_init(&heap);              // before what tasks read is allocated
 *         build_tables();
 *         orbit_jemalloc_leave();                  // so that orbits allocate outside of the heap
 *         struct orbit *saver = orbit_create("saver", save, NULL);
 *         orbit_jemalloc_enter(&heap);
 *         ...
 *         if (orbit_jemalloc_adopt(&heap) == 0)    // regions that have come since
 *             future = orbit_call_async(saver, 0, heap.area_count, heap.areas, NULL, &args, sizeof args);
 *
 * Link the program with jemalloc (or preload it). Only this header knows jemalloc: the library does
 * not. Memory is taken in regions of 32 MiB, larger ones for larger heaps. What the program frees
 * is jemalloc's to use again; it goes back to the system never.
 *
 * A task sees the heap as it was at the call; what it allocates itself comes from another arena,
 * since orbits are clones of a thread that has left the heap. A task must not free or reallocate
 * objects of the heap: it has a replica of them, and not jemalloc's state of that moment.
 *
 * Threads: init, adopt, and calls that name heap.areas: one at a time. enter and leave hold for the
 * thread that calls them. New threads are in arenas of jemalloc's choice until they enter.
 * A thread's cache gets what the thread frees, whichever arena it is of, and malloc gives it out
 * again. So a thread that has freed memory made outside of the heap enters again, which empties its
 * cache: after a call that failed, since its text is the library's thread's.
 */
#ifndef ORBIT_JEMALLOC_H
#define ORBIT_JEMALLOC_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "orbit.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the smallest region. A region is at least a 64th of the heap before it, so that a heap
 * has some hundred at most. */
#define ORBIT_JEMALLOC_REGION ((size_t)32 << 20)
#define ORBIT_JEMALLOC_MOST_REGIONS 1024

/* jemalloc's control function: NULL where the program has no jemalloc. */
extern int mallctl(const char *name, void *old_value, size_t *old_size, void *new_value,
    size_t new_size) __attribute__((weak));

/* The functions by which an arena gets its memory, in the order of jemalloc 5's interface. */
struct orbit_jemalloc_hooks {
    void *(*alloc)(struct orbit_jemalloc_hooks *, void *, size_t, size_t, bool *, bool *, unsigned);
    bool (*dalloc)(struct orbit_jemalloc_hooks *, void *, size_t, bool, unsigned);
    void (*destroy)(struct orbit_jemalloc_hooks *, void *, size_t, bool, unsigned);
    bool (*commit)(struct orbit_jemalloc_hooks *, void *, size_t, size_t, size_t, unsigned);
    bool (*decommit)(struct orbit_jemalloc_hooks *, void *, size_t, size_t, size_t, unsigned);
    bool (*purge_lazy)(struct orbit_jemalloc_hooks *, void *, size_t, size_t, size_t, unsigned);
    bool (*purge_forced)(struct orbit_jemalloc_hooks *, void *, size_t, size_t, size_t, unsigned);
    bool (*split)(struct orbit_jemalloc_hooks *, void *, size_t, size_t, size_t, bool, unsigned);
    bool (*merge)(struct orbit_jemalloc_hooks *, void *, size_t, void *, size_t, bool, unsigned);
};

struct orbit_jemalloc_region {
    char *start;
    size_t size;
};

/* A heap. It lives as long as the program. */
struct orbit_jemalloc {
    struct orbit_jemalloc_hooks hooks; /* first: jemalloc gives hooks their own address */
    unsigned arena;                    /* jemalloc's number of it */
    size_t area_count;                 /* areas, one for each region that is adopted */
    struct orbit_area *areas[ORBIT_JEMALLOC_MOST_REGIONS];
    struct orbit_jemalloc_region regions[ORBIT_JEMALLOC_MOST_REGIONS];
    size_t region_count; /* read and written as an atomic */
    size_t used;  /* bytes of the last region; under the lock, as what follows */
    size_t total; /* bytes of all regions */
    pthread_mutex_t lock;
};

static inline bool orbit_jemalloc_grow_(struct orbit_jemalloc *heap, size_t least)
{
    size_t n = __atomic_load_n(&heap->region_count, __ATOMIC_ACQUIRE), size = ORBIT_JEMALLOC_REGION;
    void *start;
    while (size < least || size < heap->total / 64)
        size *= 2;
    if (n == ORBIT_JEMALLOC_MOST_REGIONS)
        return false;
    start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return false;
    heap->regions[n].start = (char *)start;
    heap->regions[n].size = size;
    heap->total += size;
    heap->used = 0;
    __atomic_store_n(&heap->region_count, n + 1, __ATOMIC_RELEASE);
    return true;
}

/* Called with locks of jemalloc held: allocates nothing by malloc. */
static inline void *orbit_jemalloc_alloc_(struct orbit_jemalloc_hooks *hooks, void *at, size_t size,
    size_t alignment, bool *zero,
                                          bool *commit, unsigned arena)
{
    struct orbit_jemalloc *heap = (struct orbit_jemalloc *)hooks;
    char *memory = NULL;
    (void)arena;
    if (at)
        return NULL;
    pthread_mutex_lock(&heap->lock);
    do {
        size_t n = __atomic_load_n(&heap->region_count, __ATOMIC_ACQUIRE);
        if (n > 0) {
            struct orbit_jemalloc_region *last = &heap->regions[n - 1];
            uintptr_t start = (uintptr_t)last->start;
            size_t offset = ((start + heap->used + alignment - 1) & ~(uintptr_t)(alignment - 1)) - start;
            if (offset + size <= last->size) {
                heap->used = offset + size;
                memory = last->start + offset;
            }
        }
    } while (!memory && orbit_jemalloc_grow_(heap, size + alignment));
    pthread_mutex_unlock(&heap->lock);
    if (memory)
        *zero = *commit = true;
    return memory;
}

/* True: jemalloc keeps it. */
static inline bool orbit_jemalloc_keep_(struct orbit_jemalloc_hooks *hooks, void *at, size_t size, bool committed,
    unsigned arena)
{
    (void)hooks, (void)at, (void)size, (void)committed, (void)arena;
    return true;
}

/* False: it may. */
static inline bool orbit_jemalloc_split_(struct orbit_jemalloc_hooks *hooks, void *at, size_t size, size_t a,
    size_t b, bool committed,
                                         unsigned arena)
{
    (void)hooks, (void)at, (void)size, (void)a, (void)b, (void)committed, (void)arena;
    return false;
}

static inline bool orbit_jemalloc_merge_(struct orbit_jemalloc_hooks *hooks, void *a, size_t a_size, void *b,
    size_t b_size,
                                         bool committed, unsigned arena)
{
    (void)hooks, (void)a, (void)a_size, (void)b, (void)b_size, (void)committed, (void)arena;
    return false;
}

static inline int orbit_jemalloc_use_(unsigned arena)
{
    int error;
    if (!mallctl)
        return -EOPNOTSUPP;
    /* What the thread has cached is of the arena before. */
    mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
    error = mallctl("thread.arena", NULL, NULL, &arena, sizeof arena);
    return -error;
}

/* This thread allocates in the heap from now on. 0 or -errno. */
static inline int orbit_jemalloc_enter(struct orbit_jemalloc *heap)
{
    return orbit_jemalloc_use_(heap->arena);
}

/* This thread allocates outside of all such heaps from now on, in jemalloc's first arena. Leave the
 * heap before the library is set up (orbit_init, or the first orbit_create), and around the making
 * of an orbit whose code was loaded later: what is cloned then allocates where the thread does. 0
 * or -errno. */
static inline int orbit_jemalloc_leave(void)
{
    return orbit_jemalloc_use_(0);
}

/* Makes the heap, and enters it. The struct must be all zeros, and stay where it is. 0; EOPNOTSUPP:
 * the program has no jemalloc 5;
 * EAGAIN: jemalloc makes no more arenas. */
static inline int orbit_jemalloc_init(struct orbit_jemalloc *heap)
{
    struct orbit_jemalloc_hooks *hooks = &heap->hooks;
    size_t size = sizeof heap->arena;
    int error;
    if (!mallctl)
        return -EOPNOTSUPP;
    pthread_mutex_init(&heap->lock, NULL);
    hooks->alloc = orbit_jemalloc_alloc_;
    hooks->dalloc = orbit_jemalloc_keep_;
    hooks->split = orbit_jemalloc_split_;
    hooks->merge = orbit_jemalloc_merge_;
    error = mallctl("arenas.create", &heap->arena, &size, &hooks, sizeof hooks);
    if (error != 0)
        return error == ENOENT ? -EOPNOTSUPP : -error;
    return orbit_jemalloc_enter(heap);
}

/* Makes areas of regions that have come since the last time: before each call that names
 * heap.areas. 0 or -errno. */
static inline int orbit_jemalloc_adopt(struct orbit_jemalloc *heap)
{
    size_t n = __atomic_load_n(&heap->region_count, __ATOMIC_ACQUIRE);
    while (heap->area_count < n) {
        const struct orbit_jemalloc_region *region = &heap->regions[heap->area_count];
        struct orbit_area *area = orbit_area_adopt(region->start, region->size);
        if (!area)
            return -errno;
        heap->areas[heap->area_count++] = area;
    }
    return 0;
}

/* Whether this address is in the heap. */
static inline bool orbit_jemalloc_has(const struct orbit_jemalloc *heap, const void *address)
{
    size_t n = __atomic_load_n(&heap->region_count, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < n; i++)
        if ((const char *)address >= heap->regions[i].start
            && (const char *)address < heap->regions[i].start + heap->regions[i].size)
            return true;
    return false;
}

#ifdef __cplusplus
}
#endif
#endif
