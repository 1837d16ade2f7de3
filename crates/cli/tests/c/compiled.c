/* A program that knows nothing of sections, for what a compiler can mark in it. WAY: `loop` (a list
 * that became circular), `lock` (a mutex block that never ends), `healthy`: all ways out of loops,
 * and a consumer that waits for its condition far longer than the limit. */
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct job {
    struct job *next;
    long value;
};

static struct job jobs[20];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static int queued, taken, stuck;
static volatile int always = 1;

static long milliseconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Some CPU time. */
__attribute__((noinline)) static long work(long value)
{
    for (volatile int i = 0; i < 20000; i++)
        value += i;
    return value;
}

/* Waits as a program does that has nothing to do, outside of all loops and locks. */
__attribute__((noinline)) static void rest(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, 0);
}

__attribute__((noinline)) long sum(struct job *from, int way)
{
    long sum = 0;
    for (struct job *j = from; j; j = j->next) {
        sum += work(j->value);
        if (way == 1 && j->value == 5)
            return sum;
        if (way == 2 && j->value == 6)
            goto out;
        if (way == 3 && j->value == 7)
            break;
    }
    return sum + 1;
out:
    return sum + 2;
}

__attribute__((noinline)) void put(void)
{
    pthread_mutex_lock(&lock);
    queued++;
    while (stuck && always)
        ;
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
}

static void *consumer(void *last)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!queued)
            pthread_cond_wait(&more, &lock);
        queued--;
        int ends = ++taken == *(int *)last;
        pthread_mutex_unlock(&lock);
        if (ends)
            return 0;
    }
}

int main(int count, char **words)
{
    const char *way = count > 1 ? words[1] : "healthy";
    int rounds = 300, last = strcmp(way, "healthy") ? -1 : rounds + 1;
    pthread_t thread;
    pthread_create(&thread, 0, consumer, &last);
    for (int i = 0; i < 20; i++)
        jobs[i] = (struct job){i < 19 ? &jobs[i + 1] : 0, i};
    long begin = milliseconds(CLOCK_MONOTONIC);
    int i = 0;
again:
    sum(jobs, i % 4);
    put();
    /* A loop of gotos, so that main is in none of its own while it rests. */
    if (++i < rounds)
        goto again;
    while (milliseconds(CLOCK_MONOTONIC) - begin < 2000)
        rest(100);
    if (!strcmp(way, "loop")) {
        jobs[19].next = jobs;
        sum(jobs, 0);
    }
    if (!strcmp(way, "lock")) {
        stuck = 1;
        put();
    }
    for (int exit = 0; exit < 4; exit++) {
        sum(jobs, exit);
        rest(3500);
    }
    put();
    pthread_join(thread, 0);
    return 0;
}
