/* Signal handlers of the program run while it waits for calls; no wait ends early, and the orbit
 * gets none of them. */
#include "check.h"
#include <signal.h>
#include <sys/time.h>
#include <time.h>

static volatile sig_atomic_t ticks;
static void tick(int signal)
{
    (void)signal;
    ticks++;
}

static long slow(void *store, void *args)
{
    struct timespec pause = {0, 20 * 1000 * 1000};
    (void)store, (void)args;
    nanosleep(&pause, NULL);
    return 9;
}

int main(void)
{
    struct orbit *orbit = orbit_create("slow", slow, NULL);
    CHECK(orbit);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = tick; /* no SA_RESTART: system calls end with EINTR */
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    struct orbit_outcome end;
    for (int i = 0; i < 25; i++) {
        GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 0, &end), 0);
        CHECK(end.value == 9);
    }
    struct itimerval off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &off, NULL);
    CHECK(ticks > 10);
    GIVES(orbit_destroy(orbit), 0);
    return 0;
}
