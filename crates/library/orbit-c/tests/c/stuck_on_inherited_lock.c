/* A task that needs a lock outside of areas, which another thread of main held when the library was
 * set up, ends as stuck within seconds, also where it waits in steps of some milliseconds. A
 * process made when main holds it no more has it free. A task whose threads hand work to one
 * another, and one that sleeps for a time of its own, are never taken for that. */
#include "check.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int held, release_it;

static void *holder(void *unused)
{
    pthread_mutex_lock(&lock);
    held = 1;
    while (!release_it)
        usleep(1000);
    pthread_mutex_unlock(&lock);
    held = 0;
    return unused;
}

static long takes(void *store, void *args)
{
    (void)store, (void)args;
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    return 7;
}

/* A lock as interpreters have it: taken is what a waiter looks at every 5 ms. */
static pthread_mutex_t inner = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER;
static atomic_int taken;

static void wait_on(pthread_cond_t *cond, pthread_mutex_t *mutex, long ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ns % 1000000000;
    until.tv_sec += ns / 1000000000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(cond, mutex, &until);
}

static long takes_in_steps(void *store, void *args)
{
    (void)store, (void)args;
    pthread_mutex_lock(&inner);
    while (taken)
        wait_on(&freed, &inner, 5000000);
    pthread_mutex_unlock(&inner);
    return 9;
}

/* Sleeps of its own: one long one on a variable of the program, many short ones on the stack. */
static long sleeps(void *store, void *args)
{
    (void)store, (void)args;
    pthread_mutex_lock(&inner);
    wait_on(&freed, &inner, 3500000000);
    pthread_mutex_unlock(&inner);
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < 700; i++)
        wait_on(&cond, &mutex, 5000000);
    pthread_mutex_unlock(&mutex);
    return 10;
}

static sem_t there, back;

static void *answers(void *unused)
{
    for (;;) {
        sem_wait(&there);
        for (volatile int i = 0; i < 20000000; i++)
            ;
        sem_post(&back);
    }
    return unused;
}

/* Four seconds of work, of which this thread sleeps all. */
static long hands_over(void *store, void *args)
{
    (void)store, (void)args;
    struct timespec begun, now;
    pthread_t thread;
    sem_init(&there, 0, 0), sem_init(&back, 0, 0);
    if (pthread_create(&thread, NULL, answers, NULL))
        return -1;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        sem_post(&there);
        sem_wait(&back);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begun.tv_sec < 4);
    return 8;
}

int main(void)
{
    pthread_t thread;
    taken = 1;
    CHECK(pthread_create(&thread, NULL, holder, NULL) == 0);
    while (!held)
        usleep(1000);
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "takes";
    options.entry = takes;
    options.restart = ORBIT_RESTART_ALWAYS;
    struct orbit *orbit = orbit_create_with(&options);
    CHECK(orbit);
    struct orbit_outcome end;
    GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 0, &end), -EDEADLK);
    CHECK(end.kind == ORBIT_STUCK && end.address == &lock && end.frame_count > 1);
    CHECK(strstr(end.text, "outside of areas") && strstr(end.text, "takes"));
    GIVES(orbit_call(orbit, 0, NULL, takes_in_steps, NULL, 0, &end), -EDEADLK);
    CHECK(end.kind == ORBIT_STUCK && strstr(end.text, "takes_in_steps"));
    taken = 0;
    release_it = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    /* The next process may have been made while it was still held. */
    int answer = orbit_call(orbit, 0, NULL, NULL, NULL, 0, &end);
    if (answer == -EDEADLK)
        answer = orbit_call(orbit, 0, NULL, NULL, NULL, 0, &end);
    GIVES(answer, 0);
    GIVES(end.value, 7);
    GIVES(orbit_call(orbit, 0, NULL, hands_over, NULL, 0, &end), 0);
    GIVES(end.value, 8);
    GIVES(orbit_call(orbit, 0, NULL, sleeps, NULL, 0, &end), 0);
    GIVES(end.value, 10);
    return 0;
}
