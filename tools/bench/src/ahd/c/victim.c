// Programs to inspect. `healthy N`: N threads that fight over four locks, always taken in the same
// order. `hung N`: N threads in a ring of locks, each under a few calls. Both print a line once all
// threads are there, and end with their parent.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST = 64, FEW = 4 };
static pthread_mutex_t locks[MOST];
static atomic_int there;
static int threads;

static void *fights(void *arg) {
    unsigned s = (unsigned)(long)arg * 7919 + 1;
    atomic_fetch_add(&there, 1);
    for (;;) {
        s = s * 1103515245 + 12345;
        int a = (s >> 16) % FEW, b = (s >> 20) % FEW;
        int low = a < b ? a : b, high = a < b ? b : a;
        pthread_mutex_lock(&locks[low]);
        if (high != low) {
            pthread_mutex_lock(&locks[high]);
        }
        if ((s >> 8) % 4 == 0) {
            usleep((s >> 10) % 50);
        }
        if (high != low) {
            pthread_mutex_unlock(&locks[high]);
        }
        pthread_mutex_unlock(&locks[low]);
    }
    return NULL;
}

static __attribute__((noinline)) int deeper(long i, int depth) {
    if (depth > 0) {
        return deeper(i, depth - 1) + 1;
    }
    atomic_fetch_add(&there, 1);
    while (atomic_load(&there) < threads) {
        usleep(1000);
    }
    return pthread_mutex_lock(&locks[(i + 1) % threads]);
}

static void *hangs(void *arg) {
    pthread_mutex_lock(&locks[(long)arg]);
    deeper((long)arg, 10);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3 || (threads = atoi(argv[2])) < 2 || threads > MOST) {
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < MOST; i++) {
        pthread_mutex_init(&locks[i], NULL);
    }
    void *(*way)(void *) = strcmp(argv[1], "hung") == 0 ? hangs : fights;
    for (long i = 1; i < threads; i++) {
        pthread_t t;
        if (pthread_create(&t, NULL, way, (void *)i) != 0) {
            return 1;
        }
    }
    while (atomic_load(&there) < threads - 1) {
        usleep(1000);
    }
    printf("ready\n");
    fflush(stdout);
    way((void *)0);
}
