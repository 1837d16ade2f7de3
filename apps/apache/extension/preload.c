/* orbit_apr.so, preloaded into Apache: stands in for the mutexes and condition variables of APR,
 * and records in a table which thread holds and waits for which. Without a table, in a process that
 * the module has not set up, it only passes calls on.
 *
 * A thread that waits on a condition does not hold the mutex meanwhile: an idle worker is no
 * holder.
 */
#include "locks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

/* APR's types are pointers and integers here: its functions are called as their manual declares
 * them. */
typedef int status;
typedef int64_t microseconds;

static _Atomic(struct lock_table *) recorded;
static atomic_uint generation; /* of the table: a thread's slot belongs to one */
static __thread struct thread_slot *own_slot;
static __thread unsigned own_generation;
static pthread_key_t at_thread_exit;

static void release_slot(void *slot)
{
    if (atomic_load(&recorded) && own_generation == atomic_load(&generation))
        __atomic_store_n(&((struct thread_slot *)slot)->tid, 0, __ATOMIC_RELEASE);
    own_slot = NULL;
}

static void forget_in_child(void)
{
    atomic_store(&recorded, NULL);
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_key_create(&at_thread_exit, release_slot);
    pthread_atfork(NULL, NULL, forget_in_child);
}

EXPORT void orbit_apr_record(struct lock_table *table)
{
    atomic_fetch_add(&generation, 1);
    atomic_store(&recorded, table);
}

static __attribute__((noinline)) struct thread_slot *take_slot(struct lock_table *table, unsigned now)
{
    int32_t tid = (int32_t)syscall(SYS_gettid);
    own_generation = now;
    own_slot = NULL;
    for (size_t i = 0; i < MOST_THREADS; i++) {
        int32_t free_slot = 0;
        struct thread_slot *slot = &table->slots[i];
        if (__atomic_load_n(&slot->tid, __ATOMIC_RELAXED) == 0 &&
            __atomic_compare_exchange_n(&slot->tid, &free_slot, tid, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            slot->held_count = 0;
            slot->waits_for = NULL;
            own_slot = slot;
            pthread_setspecific(at_thread_exit, slot);
            break;
        }
    }
    return own_slot;
}

static inline struct thread_slot *slot_of_thread(void)
{
    struct lock_table *table = atomic_load_explicit(&recorded, memory_order_acquire);
    unsigned now;
    if (!table)
        return NULL;
    now = atomic_load_explicit(&generation, memory_order_relaxed);
    return own_generation == now ? own_slot : take_slot(table, now);
}

static inline int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Fields before the count: what is counted is complete. */
static void note_taken(struct thread_slot *slot, const void *lock, const void *site)
{
    int32_t n = slot->held_count;
    if (n < MOST_HELD)
        slot->held[n] = (struct held_lock){lock, site, now_ms()};
    atomic_signal_fence(memory_order_release);
    slot->held_count = n + 1;
}

static void note_released(struct thread_slot *slot, const void *lock)
{
    int32_t n = slot->held_count, at = (n < MOST_HELD ? n : MOST_HELD) - 1;
    while (at >= 0 && slot->held[at].lock != lock)
        at--;
    if (at < 0 && n <= MOST_HELD)
        return; /* taken before there was a table */
    for (; at >= 0 && at + 1 < n && at + 1 < MOST_HELD; at++)
        slot->held[at] = slot->held[at + 1];
    slot->held_count = n - 1;
}

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort(); /* a program that calls APR without having it */
    return found;
}

EXPORT status apr_thread_mutex_lock(void *mutex)
{
    static status (*next)(void *);
    struct thread_slot *slot = slot_of_thread();
    status end;
    if (!next)
        *(void **)&next = real("apr_thread_mutex_lock");
    if (!slot)
        return next(mutex);
    slot->waits_for = mutex;
    end = next(mutex);
    slot->waits_for = NULL;
    if (end == 0)
        note_taken(slot, mutex, CALLER);
    return end;
}

EXPORT status apr_thread_mutex_trylock(void *mutex)
{
    static status (*next)(void *);
    struct thread_slot *slot = slot_of_thread();
    status end;
    if (!next)
        *(void **)&next = real("apr_thread_mutex_trylock");
    end = next(mutex);
    if (slot && end == 0)
        note_taken(slot, mutex, CALLER);
    return end;
}

EXPORT status apr_thread_mutex_timedlock(void *mutex, microseconds timeout)
{
    static status (*next)(void *, microseconds);
    struct thread_slot *slot = slot_of_thread();
    status end;
    if (!next)
        *(void **)&next = real("apr_thread_mutex_timedlock");
    if (slot)
        slot->waits_for = mutex;
    end = next(mutex, timeout);
    if (slot) {
        slot->waits_for = NULL;
        if (end == 0)
            note_taken(slot, mutex, CALLER);
    }
    return end;
}

EXPORT status apr_thread_mutex_unlock(void *mutex)
{
    static status (*next)(void *);
    struct thread_slot *slot = slot_of_thread();
    if (!next)
        *(void **)&next = real("apr_thread_mutex_unlock");
    if (slot)
        note_released(slot, mutex);
    return next(mutex);
}

EXPORT status apr_thread_cond_wait(void *condition, void *mutex)
{
    static status (*next)(void *, void *);
    struct thread_slot *slot = slot_of_thread();
    status end;
    if (!next)
        *(void **)&next = real("apr_thread_cond_wait");
    if (!slot)
        return next(condition, mutex);
    note_released(slot, mutex);
    end = next(condition, mutex);
    note_taken(slot, mutex, CALLER);
    return end;
}

EXPORT status apr_thread_cond_timedwait(void *condition, void *mutex, microseconds timeout)
{
    static status (*next)(void *, void *, microseconds);
    struct thread_slot *slot = slot_of_thread();
    status end;
    if (!next)
        *(void **)&next = real("apr_thread_cond_timedwait");
    if (!slot)
        return next(condition, mutex, timeout);
    note_released(slot, mutex);
    end = next(condition, mutex, timeout);
    note_taken(slot, mutex, CALLER);
    return end;
}
