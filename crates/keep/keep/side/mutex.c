/* Locks that processes share: mutexes in shared memory, System V semaphores. A rollback does not
 * undo them, so a replay must not take or release one again: they are logged. Other mutexes are the
 * program's own memory: only their order among threads is logged (turns.c).
 */
#include "own.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/sem.h>
#include <sys/syscall.h>

/* What glibc marks mutexes with that processes share. */
#define SHARED_BIT 128

/* Kinds of calls in the log. */
enum { LOCK = KEEP_PEEK + 500, TRY, UNLOCK, CONSISTENT };

/* A signal that is deferred, and a checkpoint, wait for this at most while the lock is waited
 * for. */
#define STEP_NS 100000000

static int is_shared(const pthread_mutex_t *mutex)
{
    return __builtin_expect((mutex->__data.__kind & SHARED_BIT) != 0, 0) && keep_serves && keep_log;
}

static int number_of(const pthread_mutex_t *mutex)
{
    return (int)((uintptr_t)mutex >> 3);
}

#define REAL(name, ...) \
    ({ \
        static int (*real)(__VA_ARGS__); \
        if (__builtin_expect(!real, 0)) \
            real = (int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name); \
        real; \
    })

/* Counts what was taken or released. */
static int noted(uint32_t nr, long ret)
{
    if ((nr == LOCK || nr == TRY) && (ret == 0 || ret == EOWNERDEAD))
        keep_note_lock(KEEP_LOCK_PTHREAD, 1);
    if (nr == UNLOCK && ret == 0)
        keep_note_lock(KEEP_LOCK_PTHREAD, -1);
    return (int)ret;
}

static int logged(uint32_t nr, int (*real)(pthread_mutex_t *), pthread_mutex_t *mutex)
{
    struct keep_call call = {.log_nr = nr, .fd = number_of(mutex)};
    long ret;
    if (keep_begin(&call, &ret))
        return noted(nr, ret);
    ret = real(mutex);
    keep_end(&call, ret);
    return noted(nr, ret);
}

static int lock(pthread_mutex_t *mutex)
{
    int (*timed)(pthread_mutex_t *, const struct timespec *) =
        REAL("pthread_mutex_timedlock", pthread_mutex_t *, const struct timespec *);
    struct keep_call call = {.log_nr = LOCK, .fd = number_of(mutex)};
    for (;;) {
        struct timespec until;
        long ret;
        if (keep_begin(&call, &ret))
            return noted(LOCK, ret);
        keep_clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += STEP_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        /* Also while nothing is logged yet: a checkpoint in the middle of libc's call could not
         * be gone back to. */
        int is_logged = keep_news->busy != 0;
        keep_news->busy += !is_logged;
        ret = timed(mutex, &until);
        keep_news->busy -= !is_logged;
        if (ret != ETIMEDOUT) {
            keep_end(&call, ret);
            return noted(LOCK, ret);
        }
        keep_cancel();
    }
}

static void take_turn(pthread_mutex_t *mutex, int (*lock)(pthread_mutex_t *))
{
    keep_take_turn(
        &(struct keep_mutex){mutex, lock, REAL("pthread_mutex_unlock", pthread_mutex_t *)});
}

EXPORT int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!is_shared(mutex)) {
        int (*real)(pthread_mutex_t *) = REAL("pthread_mutex_lock", pthread_mutex_t *);
        int failed = real(mutex);
        if (!failed && __builtin_expect(keep_has_turns(), 0))
            take_turn(mutex, real);
        return failed;
    }
    if (!keep_lock_begins())
        return lock(mutex);
    int ret = lock(mutex);
    keep_lock_begun(ret == 0 || ret == EOWNERDEAD);
    return ret;
}

EXPORT int pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    int (*real)(pthread_mutex_t *) = REAL("pthread_mutex_trylock", pthread_mutex_t *);
    return is_shared(mutex) ? logged(TRY, real, mutex) : real(mutex);
}

EXPORT int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    int (*real)(pthread_mutex_t *) = REAL("pthread_mutex_unlock", pthread_mutex_t *);
    return is_shared(mutex) ? logged(UNLOCK, real, mutex) : real(mutex);
}

EXPORT int pthread_mutex_consistent(pthread_mutex_t *mutex)
{
    int (*real)(pthread_mutex_t *) = REAL("pthread_mutex_consistent", pthread_mutex_t *);
    return is_shared(mutex) ? logged(CONSISTENT, real, mutex) : real(mutex);
}

static int operate(long nr, int set, struct sembuf *operations, size_t count, const struct timespec *timeout)
{
    uint64_t which = keep_log ? keep_hash((uint64_t)set, operations, count * sizeof *operations) : 0;
    struct keep_call call = {.nr = nr,
                             .log_nr = SYS_semop,
                             .fd = (int)which,
                             .arg = {set, (long)operations, (long)count, (long)timeout}};
    long ret = keep_logged(&call);
    if (ret < 0 && ret > -4096) {
        errno = (int)-ret;
        return -1;
    }
    return (int)ret;
}

EXPORT int semop(int set, struct sembuf *operations, size_t count)
{
    return operate(SYS_semop, set, operations, count, NULL);
}

EXPORT int semtimedop(int set, struct sembuf *operations, size_t count, const struct timespec *timeout)
{
    return operate(SYS_semtimedop, set, operations, count, timeout);
}
