/* What stands in for the C library's functions: preloaded, so that Varnish' calls come here.
 *
 * In main the thread that would run pool_herder() runs ours. In the orbit, where Varnish' herder
 * runs, making a thread, waiting and sleeping end a step. Everything else goes through.
 */
#define _GNU_SOURCE
#include "herder.h"

#include <dlfcn.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    return NEXT(pthread_create)(thread, attributes, start, argument);
}

EXPORT int pthread_create(pthread_t *restrict thread, const pthread_attr_t *restrict attributes, void *(*start)(void *),
                          void *restrict argument)
{
    if (is_herder_in_orbit)
        return orbit_pthread_create(thread, start, argument);
    if (pool_herder && start == pool_herder)
        start = herder_in_main;
    return real_pthread_create(thread, attributes, start, argument);
}

EXPORT int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                                  const struct timespec *restrict until)
{
    static __typeof__(&pthread_cond_timedwait) next;
    if (is_herder_in_orbit)
        return orbit_timed_wait(until);
    if (!next)
        next = NEXT(pthread_cond_timedwait);
    return next(condition, mutex, until);
}

EXPORT int nanosleep(const struct timespec *time, struct timespec *left)
{
    static __typeof__(&nanosleep) next;
    if (is_herder_in_orbit)
        return orbit_sleep(time);
    if (!next)
        next = NEXT(nanosleep);
    return next(time, left);
}
