/* Changes of the environment, as in Rx (Qin et al., SOSP 2005): while the keeper asks for it,
 * allocations are longer than asked and zeroed, and freed memory is not used again for a while. A
 * heap overflow, a read of memory that nobody has written, and a use of freed memory then do no
 * harm.
 *
 * The allocator is the program's: what is allocated in one environment may be freed in the other.
 * All of this is rolled back with the program.
 */
#include "own.h"
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

/* What an allocation is longer by. */
#define PADDING 256u
/* Freed blocks that are held back, at most, and their bytes. */
#define HELD 4096u
#define HELD_BYTES (64u << 20)

static void *(*next_malloc)(size_t);
static void *(*next_calloc)(size_t, size_t);
static void *(*next_realloc)(void *, size_t);
static void (*next_free)(void *);
static int (*next_posix_memalign)(void **, size_t, size_t);
static void *(*next_aligned_alloc)(size_t, size_t);
static void *(*next_memalign)(size_t, size_t);
static size_t (*next_usable)(void *);

/* What dlsym itself allocates while the allocator is not found yet. Never given back. */
static _Alignas(16) unsigned char early[16384];
static size_t early_used;

static void *take_early(size_t bytes)
{
    size_t from = __atomic_fetch_add(&early_used, (bytes + 31) & ~15ul, __ATOMIC_RELAXED);
    return bytes < sizeof early && from + bytes + 16 <= sizeof early ? early + from : NULL;
}

static int is_early(const void *at)
{
    return (const unsigned char *)at >= early && (const unsigned char *)at < early + sizeof early;
}

static __thread int finds __attribute__((tls_model("initial-exec")));

static __attribute__((noinline)) int find(void)
{
    if (finds)
        return 0;
    finds = 1;
    next_calloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    next_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    next_posix_memalign = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    next_aligned_alloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    next_memalign = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "memalign");
    next_usable = (size_t (*)(void *))dlsym(RTLD_NEXT, "malloc_usable_size");
    void *(*found)(size_t) = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    __atomic_store_n(&next_malloc, found, __ATOMIC_RELEASE);
    finds = 0;
    return 1;
}

static inline int has_next(void)
{
    return __builtin_expect(__atomic_load_n(&next_malloc, __ATOMIC_ACQUIRE) != NULL, 1) || find();
}

static inline int is_changed(void)
{
    return __builtin_expect(keep_orders != NULL, 1) && __builtin_expect(keep_orders->environment != 0, 0);
}

/* The allocator's own calls are not the program's: jemalloc reads a clock now and then, at other
 * moments in a replay. */
__thread int keep_in_heap __attribute__((tls_model("initial-exec")));
#define INSIDE(call)                      \
    (__extension__({                      \
        keep_in_heap++;                   \
        __auto_type result_ = (call);     \
        keep_in_heap--;                   \
        result_;                          \
    }))

/* ---- freed blocks that are held back: a ring, under a lock that a thread holds for a few
 * stores */

static struct {
    volatile unsigned char lock;
    unsigned from, count;
    size_t bytes;
    void *block[HELD];
} held;

static void lock_held(void)
{
    while (__atomic_test_and_set(&held.lock, __ATOMIC_ACQUIRE))
        __builtin_ia32_pause();
}

static void unlock_held(void)
{
    __atomic_clear(&held.lock, __ATOMIC_RELEASE);
}

static size_t usable(void *block)
{
    return next_usable ? next_usable(block) : 0;
}

/* The block that has been held back longest, if there are more than may be. */
static void *oldest_held(size_t bytes, unsigned most)
{
    void *block = NULL;
    if (held.count > most || held.bytes > bytes) {
        block = held.block[held.from];
        held.from = (held.from + 1) % HELD;
        held.count--;
    }
    return block;
}

static void hold_back(void *block)
{
    size_t bytes = usable(block);
    lock_held();
    for (unsigned i = 0; i < held.count; i++)
        if (held.block[(held.from + i) % HELD] == block) {
            /* Freed twice: the second time does nothing. */
            unlock_held();
            return;
        }
    void *old = oldest_held(HELD_BYTES, HELD - 1);
    held.block[(held.from + held.count) % HELD] = block;
    held.count++;
    held.bytes += bytes;
    if (old)
        held.bytes -= usable(old) < held.bytes ? usable(old) : held.bytes;
    unlock_held();
    if (old)
        (void)INSIDE((next_free(old), 0));
}

/* In the usual environment what was held back goes, a few blocks at a time. */
static __attribute__((noinline)) void let_go(void)
{
    for (int i = 0; i < 4; i++) {
        lock_held();
        void *old = held.count ? oldest_held(0, 0) : NULL;
        if (!held.count)
            held.bytes = 0;
        unlock_held();
        if (!old)
            return;
        (void)INSIDE((next_free(old), 0));
    }
}

/* ---- the allocator's functions */

EXPORT void *malloc(size_t bytes)
{
    if (!has_next())
        return take_early(bytes);
    if (!is_changed())
        return INSIDE(next_malloc(bytes));
    if (bytes > SIZE_MAX - PADDING) {
        errno = ENOMEM;
        return NULL;
    }
    void *block = INSIDE(next_malloc(bytes + PADDING));
    if (block)
        memset(block, 0, bytes + PADDING);
    return block;
}

EXPORT void free(void *block)
{
    if (!block || is_early(block) || !has_next())
        return;
    if (is_changed()) {
        hold_back(block);
        return;
    }
    if (__builtin_expect(held.count != 0, 0))
        let_go();
    (void)INSIDE((next_free(block), 0));
}

EXPORT void *calloc(size_t count, size_t size)
{
    size_t bytes;
    if (!has_next()) {
        return __builtin_mul_overflow(count, size, &bytes) ? NULL : take_early(bytes); /* zeros: never used before */
    }
    if (!is_changed())
        return INSIDE(next_calloc(count, size));
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - PADDING) {
        errno = ENOMEM;
        return NULL;
    }
    return INSIDE(next_calloc(1, bytes + PADDING));
}

EXPORT void *realloc(void *block, size_t bytes)
{
    int is_early_one = is_early(block);
    if (!block || is_early_one) {
        void *made = malloc(bytes);
        if (made && is_early_one) {
            size_t there = (size_t)(early + sizeof early - (unsigned char *)block);
            memcpy(made, block, bytes < there ? bytes : there);
        }
        return made;
    }
    if (!has_next())
        return NULL;
    /* Size 0 has more than one meaning: the allocator's own counts. */
    if (!is_changed() || !bytes || !next_usable)
        return INSIDE(next_realloc(block, bytes));
    void *made = malloc(bytes);
    if (made) {
        size_t there = usable(block);
        memcpy(made, block, bytes < there ? bytes : there);
        hold_back(block);
    }
    return made;
}

static void *zeroed(void *block, size_t bytes)
{
    return block ? memset(block, 0, bytes) : NULL;
}

EXPORT int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    if (!has_next() || !next_posix_memalign)
        return ENOMEM;
    if (!is_changed() || bytes > SIZE_MAX - PADDING)
        return INSIDE(next_posix_memalign(block, alignment, bytes));
    int failed = INSIDE(next_posix_memalign(block, alignment, bytes + PADDING));
    if (!failed)
        zeroed(*block, bytes + PADDING);
    return failed;
}

EXPORT void *aligned_alloc(size_t alignment, size_t bytes)
{
    if (!has_next() || !next_aligned_alloc)
        return NULL;
    /* The size stays a multiple of the alignment. */
    size_t more = alignment > PADDING ? alignment : PADDING;
    if (!is_changed() || bytes > SIZE_MAX - more)
        return INSIDE(next_aligned_alloc(alignment, bytes));
    return zeroed(INSIDE(next_aligned_alloc(alignment, bytes + more)), bytes + more);
}

EXPORT void *memalign(size_t alignment, size_t bytes)
{
    if (!has_next() || !next_memalign)
        return NULL;
    if (!is_changed() || bytes > SIZE_MAX - PADDING)
        return INSIDE(next_memalign(alignment, bytes));
    return zeroed(INSIDE(next_memalign(alignment, bytes + PADDING)), bytes + PADDING);
}

/* jemalloc's statistics, which Redis asks for ten times a second: they read clocks too, at other
 * moments in another environment. */
EXPORT int mallctl(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes)
{
    static int (*next)(const char *, void *, size_t *, void *, size_t);
    if (!next)
        next = (int (*)(const char *, void *, size_t *, void *, size_t))dlsym(RTLD_NEXT, "mallctl");
    return next ? INSIDE(next(name, old, old_bytes, new, new_bytes)) : ENOENT;
}
