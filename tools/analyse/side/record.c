/*
 * The recorder: allocations with their call stacks, in a table that the tracer maps too
 * (src/table.rs has the layout).
 *
 * Owns: the allocation functions of the program. Promises: a slot of the table belongs to one
 * address; the thread that has that address from the allocator writes it, its state last, so that
 * the tracer takes no half-written one. What does not fit is counted. In the copy (MODE_COPY) it
 * records only the order of the copy's own allocations, for the tracer.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FRAMES 32
#define SLOTS (1u << 20)
#define EVENTS (1u << 12)
/* Slots probed for one address. */
#define PROBES 4096
#define EXPORT __attribute__((visibility("default"), noinline))

enum { MODE_OFF, MODE_RECORD, MODE_COPY };
enum { FREED = 1, LIVE = 2 };

struct slot {
    _Atomic uint64_t address;
    uint64_t size;
    /* Sequence number times four, and FREED or LIVE; 0 while it is written. */
    _Atomic uint64_t state;
    uint64_t depth;
    uint64_t frames[FRAMES];
};
struct event {
    uint64_t address, size, made;
};
struct table {
    _Atomic uint64_t ready, go, mode, gate, lost, clock, events, inside, used;
    uint64_t rest[7];
    struct event ring[EVENTS];
    uint32_t index[SLOTS];
    struct slot slots[SLOTS];
};

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static struct table *table;
/* Read and written by the tracer as well, in the copy. */
static volatile uint64_t mode;
static __thread int busy __attribute__((tls_model("initial-exec")));

/* The C library's, whatever other allocator the program is linked with. */
static size_t usable_size(void *p) {
    static size_t (*_Atomic of_c_library)(void *);
    size_t (*found)(void *) = atomic_load(&of_c_library);
    if (found == NULL) {
        void *library = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
        *(void **)&found = library == NULL ? NULL : dlsym(library, "malloc_usable_size");
        atomic_store(&of_c_library, found);
    }
    return p == NULL || found == NULL ? 0 : found(p);
}

/* A system call that the tracer has a thread make. */
__asm__(".text\n.type orbit_gate,@function\norbit_gate: syscall\n int3\n");
extern const char orbit_gate[] __attribute__((visibility("hidden")));

static struct slot *slot_of(uint64_t address, int make) {
    uint64_t first = (address >> 4) * 0x9e3779b97f4a7c15u >> 44;
    for (unsigned i = 0; i < PROBES; i++) {
        uint32_t at = (first + i) & (SLOTS - 1);
        struct slot *slot = &table->slots[at];
        uint64_t has = atomic_load(&slot->address);
        if (has == address) return slot;
        if (has != 0) continue;
        if (!make) return NULL;
        if (atomic_compare_exchange_strong(&slot->address, &has, address)) {
            table->index[atomic_fetch_add(&table->used, 1)] = at;
            return slot;
        }
        if (has == address) return slot;
    }
    return NULL;
}

static void tell(void *p, size_t size, int made) {
    uint64_t n = atomic_load(&table->events);
    table->ring[n % EVENTS] = (struct event){ (uintptr_t)p, size, made };
    atomic_store(&table->events, n + 1);
}

static void made(void *p, size_t size) {
    if (p == NULL || mode == MODE_OFF || busy) return;
    if (mode == MODE_COPY) {
        tell(p, size, 1);
        return;
    }
    busy = 1;
    int saved = errno;
    void *stack[FRAMES + 2];
    int depth = backtrace(stack, FRAMES + 2);
    struct slot *slot = slot_of((uintptr_t)p, 1);
    if (slot != NULL) {
        atomic_store(&slot->state, 0);
        /* This function and the one that the program called. */
        slot->depth = depth > 2 ? (uint64_t)depth - 2 : 0;
        memcpy(slot->frames, stack + 2, slot->depth * sizeof *stack);
        slot->size = size;
        atomic_store(&slot->state, atomic_fetch_add(&table->clock, 1) * 4 + LIVE);
    } else {
        atomic_fetch_add(&table->lost, 1);
    }
    errno = saved;
    busy = 0;
}

/* Before the allocator has it: afterwards another thread may own the address. */
static void gone(void *p) {
    if (p == NULL || mode == MODE_OFF || busy) return;
    if (mode == MODE_COPY) {
        tell(p, 0, 0);
        return;
    }
    struct slot *slot = slot_of((uintptr_t)p, 0);
    if (slot != NULL) atomic_store(&slot->state, atomic_fetch_add(&table->clock, 1) * 4 + FREED);
}

/* What the allocator itself reads and writes is not the task's doing. */
static void enter(void) {
    if (mode == MODE_COPY) atomic_fetch_add(&table->inside, 1);
}
static void leave(void) {
    if (mode == MODE_COPY) atomic_fetch_sub(&table->inside, 1);
}

EXPORT void *malloc(size_t size) {
    enter();
    void *p = __libc_malloc(size);
    made(p, size);
    leave();
    return p;
}

EXPORT void *calloc(size_t count, size_t size) {
    enter();
    void *p = __libc_calloc(count, size);
    made(p, count * size);
    leave();
    return p;
}

EXPORT void *realloc(void *old, size_t size) {
    enter();
    /* Should it fail, the old object stays: then it is recorded again, from here. */
    size_t had = usable_size(old);
    gone(old);
    void *p = __libc_realloc(old, size);
    if (p != NULL)
        made(p, size);
    else if (size != 0)
        made(old, had);
    leave();
    return p;
}

EXPORT void free(void *p) {
    enter();
    gone(p);
    __libc_free(p);
    leave();
}

EXPORT void *memalign(size_t alignment, size_t size) {
    enter();
    void *p = __libc_memalign(alignment, size);
    made(p, size);
    leave();
    return p;
}

EXPORT void *aligned_alloc(size_t alignment, size_t size) {
    enter();
    void *p = __libc_memalign(alignment, size);
    made(p, size);
    leave();
    return p;
}

EXPORT int posix_memalign(void **out, size_t alignment, size_t size) {
    if (alignment < sizeof(void *) || (alignment & (alignment - 1)) != 0) return EINVAL;
    enter();
    int saved = errno;
    void *p = __libc_memalign(alignment, size);
    errno = saved;
    made(p, size);
    leave();
    if (p == NULL) return ENOMEM;
    *out = p;
    return 0;
}

/* Memory that the program maps itself; the C library maps its own without this function. */
EXPORT void *mmap(void *hint, size_t size, int protection, int flags, int fd, off_t offset) {
    enter();
    void *p = (void *)syscall(SYS_mmap, hint, size, protection, flags, fd, offset);
    if (p != MAP_FAILED) made(p, size);
    leave();
    return p;
}
EXPORT void *mmap64(void *, size_t, int, int, int, off_t) __attribute__((alias("mmap")));

EXPORT int munmap(void *p, size_t size) {
    enter();
    gone(p);
    int result = (int)syscall(SYS_munmap, p, size);
    leave();
    return result;
}

/* A program with an allocator of its own, as jemalloc, asks that one otherwise. */
EXPORT size_t malloc_usable_size(void *p) {
    enter();
    size_t size = usable_size(p);
    leave();
    return size;
}

/* A child that the program forks is no part of the analysis. */
static void in_child(void) { mode = MODE_OFF; }

__attribute__((constructor)) static void start(void) {
    const char *file = getenv("ORBIT_ANALYSE_TABLE");
    if (file == NULL) return;
    int fd = open(file, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) return;
    table = mapped;
    unsetenv("ORBIT_ANALYSE_TABLE");
    unsetenv("LD_PRELOAD");
    /* The first call loads what unwinding needs. */
    void *first[4];
    backtrace(first, 4);
    pthread_atfork(NULL, NULL, in_child);
    atomic_store(&table->mode, (uintptr_t)&mode);
    atomic_store(&table->gate, (uintptr_t)orbit_gate);
    mode = MODE_RECORD;
    atomic_store(&table->ready, sizeof *table);
    while (atomic_load(&table->go) == 0) nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}
