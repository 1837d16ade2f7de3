/* The heap of Redis, in a jemalloc arena of our own, whose memory comes from regions that can be made areas.
 *
 * The constructor runs before Redis' first allocation, since the library is preloaded. Hooks are called with locks of jemalloc
 * held: they allocate nothing. Memory is handed out from the start of a region on and never taken back: what Redis frees is
 * jemalloc's to use again.
 */
#define _GNU_SOURCE
#include "rdb.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

/* jemalloc's, in the library that redis-server is linked with. */
int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size) __attribute__((weak));

/* As jemalloc 5 declares extent_hooks_t: part of its interface. */
struct hooks {
    void *(*alloc)(struct hooks *, void *, size_t, size_t, bool *, bool *, unsigned);
    bool (*dalloc)(struct hooks *, void *, size_t, bool, unsigned);
    void (*destroy)(struct hooks *, void *, size_t, bool, unsigned);
    bool (*commit)(struct hooks *, void *, size_t, size_t, size_t, unsigned);
    bool (*decommit)(struct hooks *, void *, size_t, size_t, size_t, unsigned);
    bool (*purge_lazy)(struct hooks *, void *, size_t, size_t, size_t, unsigned);
    bool (*purge_forced)(struct hooks *, void *, size_t, size_t, size_t, unsigned);
    bool (*split)(struct hooks *, void *, size_t, size_t, size_t, bool, unsigned);
    bool (*merge)(struct hooks *, void *, size_t, void *, size_t, bool, unsigned);
};

/* Smallest region. Later ones are larger, so that a call names some hundred areas at most. */
#define REGION_SIZE ((size_t)32 << 20)
#define MOST_REGIONS 2048

static struct region regions[MOST_REGIONS];
static _Atomic size_t region_count;
static size_t used; /* of the last region */
static size_t total;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned arena;
static bool is_used;

static bool add_region(size_t least)
{
    size_t n = atomic_load(&region_count), size = REGION_SIZE;
    void *start;
    while (size < least || size < total / 128)
        size *= 2;
    if (n == MOST_REGIONS)
        return false;
    start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return false;
    regions[n] = (struct region){start, size};
    total += size;
    used = 0;
    atomic_store(&region_count, n + 1);
    return true;
}

static void *take(size_t size, size_t alignment)
{
    struct region *last;
    size_t at;
    if (region_count > 0) {
        last = &regions[region_count - 1];
        at = (((uintptr_t)last->start + used + alignment - 1) & ~(uintptr_t)(alignment - 1)) - (uintptr_t)last->start;
        if (at + size <= last->size) {
            used = at + size;
            return last->start + at;
        }
    }
    return add_region(size + alignment) ? take(size, alignment) : NULL;
}

static void *on_alloc(struct hooks *h, void *at, size_t size, size_t alignment, bool *zero, bool *commit, unsigned index)
{
    void *memory;
    (void)h, (void)index;
    if (at)
        return NULL;
    pthread_mutex_lock(&lock);
    memory = take(size, alignment);
    pthread_mutex_unlock(&lock);
    if (memory)
        *zero = *commit = true;
    return memory;
}

/* True: jemalloc keeps it. */
static bool on_dalloc(struct hooks *h, void *at, size_t size, bool committed, unsigned index)
{
    (void)h, (void)at, (void)size, (void)committed, (void)index;
    return true;
}

/* False: it may split and merge as it likes. */
static bool on_split(struct hooks *h, void *at, size_t size, size_t a, size_t b, bool committed, unsigned index)
{
    (void)h, (void)at, (void)size, (void)a, (void)b, (void)committed, (void)index;
    return false;
}

static bool on_merge(struct hooks *h, void *a, size_t a_size, void *b, size_t b_size, bool committed, unsigned index)
{
    (void)h, (void)a, (void)a_size, (void)b, (void)b_size, (void)committed, (void)index;
    return false;
}

static struct hooks hooks = {on_alloc, on_dalloc, NULL, NULL, NULL, NULL, NULL, on_split, on_merge};

/* Whether Redis has begun: its main object is all zeros before. Then what it has allocated lies elsewhere. */
static bool has_begun(void)
{
    const unsigned char *server = dlsym(RTLD_DEFAULT, "server");
    for (size_t i = 0; server && i < 1024; i++)
        if (server[i] != 0)
            return true;
    return server == NULL;
}

__attribute__((constructor)) static void make_arena(void)
{
    struct hooks *ours = &hooks;
    size_t size = sizeof arena;
    if (mallctl && !has_begun() && mallctl("arenas.create", &arena, &size, &ours, sizeof ours) == 0) {
        is_used = true;
        arena_leave(false);
    }
}

bool arena_is_used(void)
{
    return is_used;
}

void arena_leave(bool leave)
{
    unsigned to = leave ? 0 : arena;
    mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
    mallctl("thread.arena", NULL, NULL, &to, sizeof to);
}

size_t arena_regions(struct region const **out)
{
    *out = regions;
    return atomic_load(&region_count);
}
