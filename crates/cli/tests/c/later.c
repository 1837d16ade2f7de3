// A healthy main loop until the file of the first argument is there; then it hangs in the way of
// the second: self or spin; or renamed: as self, once the file is gone again, after it has made a
// process and taken a name that is no UTF-8.
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sink;

__attribute__((noinline)) void spin_here(void) {
    for (;;) {
        sink++;
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    struct timespec nap = {0, 5000000};
    while (access(argv[1], F_OK) != 0) {
        nanosleep(&nap, 0);
    }
    if (strcmp(argv[2], "spin") == 0) {
        spin_here();
    } else if (strcmp(argv[2], "renamed") == 0) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) {
                nanosleep(&nap, 0);
            }
        }
        prctl(PR_SET_NAME, "\xd0\xb0\xd0");
        while (access(argv[1], F_OK) == 0) {
            nanosleep(&nap, 0);
        }
    }
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    pthread_mutex_lock(&lock);
    return 0;
}
