/* 1,000 threads alive at once, each of which makes calls; then as many again. */
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THREADS 1000
static pthread_barrier_t all;
static long bad;

static void *work(void *argument) {
    long wrong = 0;
    pthread_barrier_wait(&all);
    for (int i = 0; i < 10; i++) wrong += syscall(SYS_getpid) != getpid();
    __atomic_add_fetch(&bad, wrong, __ATOMIC_RELAXED);
    return argument;
}

int main(void) {
    static pthread_t threads[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int round = 0; round < 2; round++) {
        pthread_barrier_init(&all, NULL, THREADS);
        for (int i = 0; i < THREADS; i++)
            if (pthread_create(&threads[i], &small, work, NULL)) return 2;
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        pthread_barrier_destroy(&all);
    }
    printf("bad %ld\n", bad);
    return bad != 0;
}
