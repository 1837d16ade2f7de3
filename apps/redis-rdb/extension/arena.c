/* The heap of Redis, in a jemalloc arena whose memory comes from regions that can be made areas:
 * orbit_jemalloc.h does it.
 *
 * The constructor runs before Redis' first allocation, since the library is preloaded.
 */
#define _GNU_SOURCE
#include "rdb.h"

#include <dlfcn.h>

static struct orbit_jemalloc heap;
static bool is_used;

/* Whether Redis has begun: its main object is all zeros before. Then what it has allocated lies
 * elsewhere. */
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
    is_used = mallctl && !has_begun() && orbit_jemalloc_init(&heap) == 0;
}

bool arena_is_used(void)
{
    return is_used;
}

void arena_leave(bool leave)
{
    if (leave)
        orbit_jemalloc_leave();
    else
        orbit_jemalloc_enter(&heap);
}

size_t arena_regions(const struct orbit_jemalloc_region **out)
{
    *out = heap.regions;
    return __atomic_load_n(&heap.region_count, __ATOMIC_ACQUIRE);
}
