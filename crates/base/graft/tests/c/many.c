/* A batch job of many threads, some of which compute while others wait for them, come and go: its
 * output is one number. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t next = PTHREAD_COND_INITIALIZER;
static unsigned long sum, turn;
static int rounds;

static void *works(void *number)
{
    for (int round = 0; round < rounds; round++) {
        unsigned long x = (unsigned long)number + 88172645463325252u + (unsigned long)round;
        for (int i = 0; i < 20000; i++)
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        usleep(500);
        pthread_mutex_lock(&lock);
        sum += x;
        turn++;
        pthread_cond_broadcast(&next);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    int threads = count > 1 ? atoi(arguments[1]) : 500;
    rounds = count > 2 ? atoi(arguments[2]) : 20;
    pthread_t *all = calloc((size_t)threads, sizeof *all);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (long n = 0; n < threads; n++)
        if (pthread_create(&all[n], &small, works, (void *)n))
            return 2;
    pthread_mutex_lock(&lock);
    while (turn < (unsigned long)threads * (unsigned long)rounds)
        pthread_cond_wait(&next, &lock);
    pthread_mutex_unlock(&lock);
    for (int n = 0; n < threads; n++)
        pthread_join(all[n], NULL);
    printf("%lu\n", sum);
    return 0;
}
