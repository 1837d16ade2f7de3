/* A task that takes a lock which lies in an area and is held in the snapshot: ended, and the
 * outcome names the lock. One that somebody in the orbit can release, or that ends its wait by
 * itself, is left alone. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

struct locks {
    char before[40];
    pthread_mutex_t mutex, shared;
    pthread_rwlock_t rwlock;
    sem_t empty;
    pthread_mutex_t released;
};

static long takes_mutex(void *store, void *args)
{
    (void)store;
    return pthread_mutex_lock(&(*(struct locks **)args)->mutex);
}

static long takes_shared(void *store, void *args)
{
    (void)store;
    return pthread_mutex_lock(&(*(struct locks **)args)->shared);
}

static long reads_rwlock(void *store, void *args)
{
    (void)store;
    return pthread_rwlock_rdlock(&(*(struct locks **)args)->rwlock);
}

static long waits_for_semaphore(void *store, void *args)
{
    (void)store;
    return sem_wait(&(*(struct locks **)args)->empty);
}

static void *takes_too(void *locks)
{
    pthread_mutex_lock(&((struct locks *)locks)->shared);
    return NULL;
}

/* Two threads, neither of which ever wakes. */
static long both_sleep(void *store, void *args)
{
    pthread_t thread;
    pthread_create(&thread, NULL, takes_too, *(void **)args);
    return takes_mutex(store, args);
}

static void *releases(void *locks)
{
    sleep(4);
    pthread_mutex_unlock(&((struct locks *)locks)->released);
    return NULL;
}

/* A thread of the task's own releases it. */
static long is_released(void *store, void *args)
{
    struct locks *locks = *(struct locks **)args;
    pthread_t thread;
    (void)store;
    pthread_create(&thread, NULL, releases, locks);
    pthread_mutex_lock(&locks->released);
    pthread_join(thread, NULL);
    return 1;
}

static long gives_up(void *store, void *args)
{
    struct timespec until;
    (void)store;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 4;
    return pthread_mutex_timedlock(&(*(struct locks **)args)->mutex, &until);
}

int main(void)
{
    struct orbit_area_options named = ORBIT_AREA_OPTIONS_INIT;
    named.name = "the locks", named.init_size = 1 << 16;
    struct orbit_area *area = orbit_area_create_with(&named);
    struct locks *locks = orbit_calloc(area, 1, sizeof *locks);
    pthread_mutexattr_t attributes;
    CHECK(locks && pthread_mutexattr_init(&attributes) == 0);
    CHECK(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    CHECK(pthread_mutex_init(&locks->mutex, NULL) == 0 && pthread_mutex_init(&locks->shared, &attributes) == 0);
    CHECK(pthread_mutex_init(&locks->released, NULL) == 0 && pthread_rwlock_init(&locks->rwlock, NULL) == 0);
    CHECK(sem_init(&locks->empty, 0, 0) == 0);
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "taker", options.entry = takes_mutex, options.restart = ORBIT_RESTART_ALWAYS;
    struct orbit *orbit = orbit_create_with(&options);
    CHECK(orbit);
    struct orbit_outcome end;
    alarm(240);
    GIVES(orbit_call(orbit, 1, &area, NULL, &locks, sizeof locks, &end), 0); /* free: taken in the task's copy only */

    CHECK(pthread_mutex_lock(&locks->mutex) == 0 && pthread_mutex_lock(&locks->shared) == 0);
    CHECK(pthread_rwlock_wrlock(&locks->rwlock) == 0 && pthread_mutex_lock(&locks->released) == 0);
    const struct {
        orbit_entry task;
        void *lock;
        size_t size;
    } stuck[] = {
        { takes_mutex, &locks->mutex, sizeof locks->mutex },
        { takes_shared, &locks->shared, sizeof locks->shared },
        { reads_rwlock, &locks->rwlock, sizeof locks->rwlock },
        { waits_for_semaphore, &locks->empty, sizeof locks->empty },
        { both_sleep, &locks->mutex, sizeof locks->mutex },
    };
    for (size_t i = 0; i < sizeof stuck / sizeof *stuck; i++) {
        GIVES(orbit_call(orbit, 1, &area, stuck[i].task, &locks, sizeof locks, &end), -EDEADLK);
        GIVES(end.kind, ORBIT_STUCK);
        CHECK((char *)end.address >= (char *)stuck[i].lock && (char *)end.address < (char *)stuck[i].lock + stuck[i].size);
        CHECK(strstr(end.text, "area \"the locks\"") && strstr(orbit_last_error(), "stuck"));
        CHECK(end.frame_count > 0);
    }
    GIVES(orbit_call(orbit, 1, &area, is_released, &locks, sizeof locks, &end), 0);
    GIVES(end.value, 1);
    GIVES(orbit_call(orbit, 1, &area, gives_up, &locks, sizeof locks, &end), 0);
    GIVES(end.value, ETIMEDOUT);

    options.stuck_us = UINT64_MAX, options.deadline_us = 4000000;
    struct orbit *patient = orbit_create_with(&options);
    CHECK(patient);
    GIVES(orbit_call(patient, 1, &area, NULL, &locks, sizeof locks, &end), -ETIMEDOUT);
    return 0;
}
