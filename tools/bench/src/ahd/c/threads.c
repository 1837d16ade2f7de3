// N threads that sleep until there is a job, of which M work ten times a second.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t job = PTHREAD_COND_INITIALIZER;

static void *waits(void *x) {
    pthread_mutex_lock(&lock);
    for (;;) {
        pthread_cond_wait(&job, &lock);
    }
    return x;
}

static void *works(void *x) {
    for (volatile int n = 0;; n = 0) {
        while (n < 20000) {
            n++;
        }
        usleep(100000);
    }
    return x;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int threads = atoi(argv[1]), restless = atoi(argv[2]);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    for (int i = 1; i < threads; i++) {
        pthread_t t;
        if (pthread_create(&t, &small, i <= restless ? works : waits, NULL) != 0) {
            return 1;
        }
    }
    pause();
}
