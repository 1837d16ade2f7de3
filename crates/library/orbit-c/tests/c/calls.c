/* Calls: the state of their moment, arguments of every size, another function for once, and each
 * way to end. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

static void *make_store(void)
{
    long *counter = malloc(sizeof *counter);
    *counter = 100;
    return counter;
}

static long read_number(void *store, void *args)
{
    ++*(long *)store;
    return **(long **)args;
}

static long stored(void *store, void *args)
{
    return args == NULL ? *(long *)store : -1;
}

static long add_up(void *store, void *args)
{
    long sum = 0;
    (void)store;
    for (int i = 0; i < ORBIT_MAX_ARGS; i++)
        sum += ((unsigned char *)args)[i];
    return sum;
}

static volatile int *volatile nowhere;
__attribute__((noinline)) static void scribble(void)
{
    *nowhere = 1;
}

/* Overwrites its own return address, as a buffer overrun does. */
__attribute__((noinline, optimize("no-stack-protector"))) static void return_into_nowhere(void)
{
    void **frame = __builtin_frame_address(0);
    ((void *volatile *)frame)[1] = (void *)0x1234;
}

static long end_badly(void *store, void *args)
{
    (void)store;
    switch (*(int *)args) {
    case 0: scribble(); break;
    case 1: abort();
    case 2: _exit(7);
    case 3: kill(getpid(), SIGTERM); break;
    case 4: for (;;) pause();
    case 5: return_into_nowhere(); break;
    }
    return 42;
}

int main(void)
{
    GIVES(orbit_init(), 0);
    GIVES(orbit_init(), 0);
    struct orbit_area *area = orbit_area_create(4096, NULL);
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "caller";
    options.entry = read_number;
    options.init = make_store;
    options.restart = ORBIT_RESTART_ALWAYS;
    options.pending = ORBIT_PENDING_KEEP;
    struct orbit *orbit = orbit_create_with(&options);
    CHECK(area && orbit);
    GIVES(orbit_wait_ready(orbit, 30000000), 0);
    long *number = orbit_alloc(area, sizeof *number);
    struct orbit_outcome end;
    for (long i = 0; i < 300; i++) {
        *number = i;
        GIVES(orbit_call(orbit, 1, &area, NULL, &number, sizeof number, &end), 0);
        CHECK(end.kind == ORBIT_RETURNED && end.value == i && end.text[0] == 0 && end.frame_count == 0);
    }
    GIVES(orbit_area_destroy(area), -EINVAL); /* in use */
    GIVES(orbit_call(orbit, 0, NULL, stored, NULL, 0, &end), 0);
    CHECK(end.value == 400);

    static unsigned char many[ORBIT_MAX_ARGS + 1];
    memset(many, 3, sizeof many);
    GIVES(orbit_call(orbit, 0, NULL, add_up, many, ORBIT_MAX_ARGS, &end), 0);
    CHECK(end.value == 3L * ORBIT_MAX_ARGS);
    GIVES(orbit_call(orbit, 0, NULL, add_up, many, sizeof many, &end), -E2BIG);
    CHECK(end.kind == ORBIT_PENDING && strstr(orbit_last_error(), "65537"));

    const int kinds[] = {ORBIT_CRASHED, ORBIT_CRASHED, ORBIT_EXITED, ORBIT_KILLED, ORBIT_TIMED_OUT, ORBIT_CRASHED};
    const int codes[] = {-EREMOTEIO, -EREMOTEIO, -EOWNERDEAD, -EOWNERDEAD, -ETIMEDOUT, -EREMOTEIO};
    for (int how = 0; how < 6; how++) {
        struct orbit_call_options once = ORBIT_CALL_OPTIONS_INIT;
        once.func_once = end_badly;
        once.deadline_us = how == 4 ? 100000 : 0;
        GIVES(orbit_call_with(orbit, 0, NULL, &how, sizeof how, &once, &end), codes[how]);
        CHECK(end.kind == kinds[how] && end.text[0] != 0 && strncmp(end.text, orbit_last_error(), strlen(end.text)) == 0);
        switch (how) {
        case 0:
            CHECK(end.signal == SIGSEGV && end.address == NULL && end.frame_count > 1);
            CHECK(strstr(end.text, "scribble") && strstr(end.text, "end_badly"));
            break;
        case 1: CHECK(end.signal == SIGABRT); break;
        case 2: CHECK(end.status == 7); break;
        case 3: CHECK(end.signal == SIGTERM); break;
        case 5: CHECK(end.signal == SIGSEGV); break;
        }
        /* The next call works; what the store had is gone with the process. */
        GIVES(orbit_call(orbit, 0, NULL, stored, NULL, 0, &end), 0);
        CHECK(end.value == 100);
    }
    struct orbit_counters counters;
    GIVES(orbit_stats(orbit, &counters), 0);
    CHECK(counters.crashes == 6 && counters.restarts == 6 && counters.calls == 300 + 2 + 12 && counters.pid > 0);
    GIVES(orbit_kill(orbit), 0);
    GIVES(orbit_call(orbit, 1, &area, NULL, &number, sizeof number, NULL) <= 0, 1);
    GIVES(orbit_destroy(orbit), 0);
    GIVES(orbit_area_destroy(area), 0);
    return 0;
}
