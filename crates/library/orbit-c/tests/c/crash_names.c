/* A crash costs main neither time nor memory: of 100 crashed calls half are polled within 50 us of
 * processor time and 99 within 500, on a loaded machine too; main's memory does not grow, and the
 * outcome of each names the function at fault. With "no-memory" main may have no further memory of
 * its own. */
#include "check.h"
#include <stdint.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

enum { CRASHES = 100, WARM_UP = 3 };

/* Of this program's status, in KiB. */
static long kib(const char *field)
{
    char line[128];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, field, strlen(field)) == 0)
            sscanf(line + strlen(field), ": %ld", &value);
    fclose(file);
    return value;
}

static long nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

__attribute__((noinline)) static void writes_nowhere(void)
{
    /* An address that the compiler does not know. */
    volatile uintptr_t low = 16;
    *(volatile int *)low = 1;
}

static long task(void *store, void *args)
{
    (void)store;
    if (*(int *)args)
        writes_nowhere();
    return 7;
}

static int by_size(const void *a, const void *b)
{
    long one = *(const long *)a, other = *(const long *)b;
    return (one > other) - (one < other);
}

/* One crashed call: how long the poll took. */
static long crash(struct orbit *orbit, struct orbit_outcome *end)
{
    int bad = 1;
    struct orbit_future *future = orbit_call_async(orbit, 0, 0, NULL, NULL, &bad, sizeof bad);
    CHECK(future);
    struct pollfd readable = {.fd = orbit_future_fd(future), .events = POLLIN};
    CHECK(readable.fd >= 0);
    CHECK(poll(&readable, 1, 20000) == 1);
    long begun = nanoseconds();
    int answer = orbit_future_poll(future, end);
    long taken = nanoseconds() - begun;
    GIVES(answer, -EREMOTEIO);
    GIVES(orbit_future_free(future), 0);
    return taken;
}

int main(int count, char **given)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "crashes";
    options.entry = task;
    options.restart = ORBIT_RESTART_ALWAYS; /* without pauses */
    struct orbit *orbit = orbit_create_with(&options);
    CHECK(orbit);
    struct orbit_outcome end;
    int good = 0;
    GIVES(orbit_call(orbit, 0, NULL, NULL, &good, sizeof good, &end), 0);
    if (count > 1 && strcmp(given[1], "no-memory") == 0) {
        struct rlimit none = {(rlim_t)kib("VmData") << 10, RLIM_INFINITY};
        CHECK(setrlimit(RLIMIT_DATA, &none) == 0);
    }
    for (int i = 0; i < WARM_UP; i++)
        crash(orbit, &end);
    long before = kib("RssAnon"), taken[CRASHES];
    for (int i = 0; i < CRASHES; i++) {
        taken[i] = crash(orbit, &end);
        CHECK(end.kind == ORBIT_CRASHED && end.signal == SIGSEGV && end.address == (void *)16);
        CHECK(strstr(end.text, "writes_nowhere") && strstr(end.text, "crash_names.c"));
        CHECK(end.frame_count >= 2);
    }
    long grown = kib("RssAnon") - before;
    qsort(taken, CRASHES, sizeof *taken, by_size);
    printf("poll: half within %ld us, 99 of 100 within %ld us; main grew by %ld KiB\n", taken[CRASHES / 2] / 1000,
           taken[CRASHES - 2] / 1000, grown);
    CHECK(taken[CRASHES / 2] < 50000 && taken[CRASHES - 2] < 500000);
    CHECK(grown < 1024);
    GIVES(orbit_call(orbit, 0, NULL, NULL, &good, sizeof good, &end), 0);
    CHECK(end.value == 7);
    return 0;
}
