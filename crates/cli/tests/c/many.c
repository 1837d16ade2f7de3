// So many threads as the first argument says lock a mutex twice, all at once. SIGUSR1 is handled and does nothing.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void nothing(int signal) {
    (void)signal;
}

static void *hang(void *arg) {
    pthread_mutex_t *m = arg;
    pthread_mutex_lock(m);
    pthread_mutex_lock(m);
    return NULL;
}

int main(int n, char **args) {
    int threads = n > 1 ? atoi(args[1]) : 1;
    struct sigaction a = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int i = 0; i < threads; i++) {
        pthread_mutex_t *m = malloc(sizeof *m);
        pthread_mutex_init(m, NULL);
        pthread_t t;
        if (pthread_create(&t, &small, hang, m) != 0) {
            return 1;
        }
    }
    for (;;) {
        sleep(1000);
    }
}
