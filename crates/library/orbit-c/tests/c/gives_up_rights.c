/* A program that sets the library up as root and then becomes another user: it still has its
 * orbits in hand. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

static long hang(void *store, void *args)
{
    (void)store, (void)args;
    while (getpid() > 0)
        pause();
    return 0;
}

static long user(void *store, void *args)
{
    (void)store, (void)args;
    return getuid();
}

static int pid_of(struct orbit *orbit)
{
    struct orbit_counters counters;
    GIVES(orbit_stats(orbit, &counters), 0);
    return counters.pid;
}

int main(void)
{
    if (geteuid() != 0) {
        puts("SKIP: needs root, to become another user");
        return 0;
    }
    /* More than any step below may take. */
    alarm(100);
    CHECK(orbit_init() == 0);
    struct orbit *orbit = orbit_create("kept", user, NULL);
    CHECK(orbit && orbit_wait_ready(orbit, 60000000) == 0);
    CHECK(setgid(65534) == 0 && setuid(65534) == 0 && getuid() == 65534);
    struct orbit_outcome end;
    GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 0, &end), 0);
    CHECK(end.kind == ORBIT_RETURNED && end.value == 0);

    /* A deadline. */
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    options.func_once = hang;
    options.deadline_us = 50000;
    GIVES(orbit_call_with(orbit, 0, NULL, NULL, 0, &options, &end), -ETIMEDOUT);
    CHECK(end.kind == ORBIT_TIMED_OUT);

    /* A kill. */
    GIVES(orbit_wait_ready(orbit, 60000000), 0);
    options.deadline_us = 0;
    struct orbit_future *future = orbit_call_async_with(orbit, 0, NULL, NULL, 0, &options);
    CHECK(future);
    GIVES(orbit_kill(orbit), 0);
    orbit_future_wait(future, &end);
    CHECK(end.kind == ORBIT_KILLED && end.signal == SIGKILL);
    orbit_future_free(future);

    /* The end. Nobody else may ask whether there is a process of root's: EPERM says that there
     * is one. */
    GIVES(orbit_wait_ready(orbit, 60000000), 0);
    int pid = pid_of(orbit);
    CHECK(kill(pid, 0) == -1 && errno == EPERM);
    GIVES(orbit_destroy(orbit), 0);
    CHECK(kill(pid, 0) == -1 && errno == ESRCH);

    /* Another one, made since, and all of them by the end of the library. */
    orbit = orbit_create("later", user, NULL);
    CHECK(orbit && orbit_wait_ready(orbit, 60000000) == 0);
    pid = pid_of(orbit);
    GIVES(orbit_shutdown(), 0);
    CHECK(kill(pid, 0) == -1 && errno == ESRCH);
    return 0;
}
