// So many processes as the first argument says lock a mutex twice, all at once; with a second
// argument so many threads, each so many seconds after the one before. SIGUSR1 is handled and does
// nothing.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
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
    int count = n > 1 ? atoi(args[1]) : 1;
    struct sigaction a = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    for (int i = 0; i < count; i++) {
        pthread_mutex_t *m = malloc(sizeof *m);
        pthread_mutex_init(m, NULL);
        pthread_t t;
        if (n > 2) {
            struct timespec left = {atoi(args[2]), 0};
            if (pthread_create(&t, NULL, hang, m) != 0) {
                return 1;
            }
            while (nanosleep(&left, &left) != 0) {
            }
        } else if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            hang(m);
        }
    }
    for (;;) {
        sleep(1000);
    }
}
