/* Limits of descriptors, processes, address space, data, locked memory and file sizes: each is
 * an error that names it, and goes away with its cause; what works with a limit works with every
 * higher one. */
#include "check.h"
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static long nine(void *store, void *args)
{
    (void)store, (void)args;
    return 9;
}

static void limit(int what, rlim_t now)
{
    struct rlimit limit;
    CHECK(getrlimit(what, &limit) == 0);
    limit.rlim_cur = now == RLIM_INFINITY ? limit.rlim_max : now;
    CHECK(setrlimit(what, &limit) == 0);
}

/* An area, two orbits and calls of both, in a child with this limit. 1: they worked; 0: an error
 * said why. */
static int works_with(int what, rlim_t value, const char *name)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        limit(what, value);
        /* Else glibc reserves 64 MiB when a second thread first allocates, if they happen to be
         * free: 9 of 600 sweeps stumbled. */
        mallopt(M_ARENA_MAX, 1);
        struct orbit_area *area = orbit_area_create(4096, NULL);
        struct orbit *orbits[2] = {NULL, NULL};
        struct orbit_outcome end;
        int fine = area && orbit_alloc(area, 100);
        for (int n = 0; fine && n < 2; n++)
            fine = (orbits[n] = orbit_create("one", nine, NULL)) && orbit_call(orbits[n], 1, &area, NULL, NULL, 0, &end) == 0;
        char number[32];
        snprintf(number, sizeof number, "%lu", (unsigned long)value / (what == RLIMIT_AS || what == RLIMIT_FSIZE ? 1024 : 1));
        int is_named = strstr(orbit_last_error(), name) && strstr(orbit_last_error(), number);
        if (!fine && !is_named)
            fprintf(stderr, "%s %s is not named: %s\n", name, number, orbit_last_error());
        _exit(fine ? 0 : is_named ? 1 : 2);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
}

static void each_is_better_than_less(int what, const rlim_t *values, int count, const char *name)
{
    int from = count;
    for (int n = 0; n < count; n++) {
        int works = works_with(what, values[n], name);
        if (works && from == count)
            from = n;
        if (!works && from < n) {
            fprintf(stderr, "%s %lu works and %lu does not\n", name, (unsigned long)values[from], (unsigned long)values[n]);
            exit(1);
        }
    }
    CHECK(from > 0 && from < count);
    printf("%s: from %lu on\n", name, (unsigned long)values[from]);
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";
    struct orbit_outcome end;
    if (strcmp(which, "descriptors") == 0) {
        enum { MANY = 200 };
        struct orbit *orbits[MANY];
        int made = 0;
        GIVES(orbit_init(), 0);
        limit(RLIMIT_NOFILE, 60);
        while (made < MANY && (orbits[made] = orbit_create("one", nine, NULL)) != NULL)
            made++;
        CHECK(made > 0 && made < MANY && errno == EAGAIN && strstr(orbit_last_error(), "ulimit -n"));
        /* Those that were made work, and room made is room had. */
        for (int i = 0; i < made; i++)
            GIVES(orbit_call(orbits[i], 0, NULL, NULL, NULL, 0, &end), 0);
        for (int i = 0; i < made; i++)
            GIVES(orbit_destroy(orbits[i]), 0);
        limit(RLIMIT_NOFILE, RLIM_INFINITY);
    } else if (strcmp(which, "ever-more-descriptors") == 0) {
        rlim_t values[45];
        for (int n = 0; n < 45; n++)
            values[n] = (rlim_t)n + 4;
        each_is_better_than_less(RLIMIT_NOFILE, values, 45, "ulimit -n");
        return 0;
    } else if (strcmp(which, "ever-more-address-space") == 0) {
        rlim_t values[24];
        for (int n = 0; n < 24; n++)
            values[n] = (rlim_t)(n < 12 ? 12 + 8 * n : 100 << (n - 12)) << 20;
        each_is_better_than_less(RLIMIT_AS, values, 24, "ulimit -v");
        return 0;
    } else if (strcmp(which, "ever-larger-files") == 0) {
        rlim_t values[25];
        for (int n = 0; n < 25; n++)
            values[n] = n == 0 ? 0 : (rlim_t)1024 << n;
        each_is_better_than_less(RLIMIT_FSIZE, values, 25, "ulimit -f");
        return 0;
    } else if (strcmp(which, "data") == 0) {
        limit(RLIMIT_DATA, 1 << 20);
        struct orbit_area *refused = orbit_area_create(4096, NULL);
        CHECK(refused == NULL && errno == EAGAIN && strstr(orbit_last_error(), "1024 "
            "KiB") && strstr(orbit_last_error(), "ulimit -d"));
        limit(RLIMIT_DATA, RLIM_INFINITY);
    } else if (strcmp(which, "processes") == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
            puts("SKIP: needs an ordinary user");
            return 0;
        }
        limit(RLIMIT_NPROC, 0);
        FAILS(orbit_create("one", nine, NULL), EAGAIN);
        CHECK(strstr(orbit_last_error(), "ulimit -u"));
        limit(RLIMIT_NPROC, RLIM_INFINITY);
    } else if (strcmp(which, "locked-memory") == 0) {
        struct rlimit may;
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
            puts("SKIP: needs an ordinary user");
            return 0;
        }
        CHECK(getrlimit(RLIMIT_MEMLOCK, &may) == 0);
        if (may.rlim_max < 1 << 20) {
            puts("SKIP: needs a limit of locked memory of at least 1024 KiB");
            return 0;
        }
        limit(RLIMIT_MEMLOCK, 1 << 20);
        CHECK(mlockall(MCL_FUTURE) == 0);
        FAILS(orbit_area_create(4096, NULL), EAGAIN);
        CHECK(strstr(orbit_last_error(), "ulimit -l") && strstr(orbit_last_error(), "1024 KiB"));
        CHECK(strstr(orbit_last_error(), "MCL_FUTURE") && strstr(orbit_last_error(), "address space for areas"));
        CHECK(munlockall() == 0);
        /* What is mapped later is rejected with the same reason. */
        struct orbit_area *area = orbit_area_create(4096, NULL);
        struct orbit *one = orbit_create("one", nine, NULL);
        CHECK(area && one && mlockall(MCL_FUTURE) == 0);
        GIVES(orbit_call(one, 1, &area, NULL, NULL, 0, &end), -EAGAIN);
        CHECK(strstr(orbit_last_error(), "1024 KiB may be locked") && strstr(orbit_last_error(), "ulimit -l"));
        CHECK(munlockall() == 0);
        GIVES(orbit_call(one, 1, &area, NULL, NULL, 0, &end), 0);
    } else if (strcmp(which, "address-space-later") == 0) {
        /* What the set-up began is done when it returns: the program may take its own memory
         * away. */
        for (int round = 0; round < 200; round++) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                GIVES(orbit_init(), 0);
                limit(RLIMIT_AS, 4 << 20);
                usleep(2000);
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        return 0;
    } else if (strcmp(which, "address-space") == 0) {
        limit(RLIMIT_AS, 512 << 20);
        struct orbit_area *area = orbit_area_create(1 << 20, NULL);
        CHECK(area && orbit_alloc(area, 1000));
        struct orbit_area_options large = ORBIT_AREA_OPTIONS_INIT;
        large.limit = (size_t)4 << 30;
        CHECK(orbit_area_create_with(&large) == NULL && (errno == ENOSPC || errno == EAGAIN) && orbit_last_error()[0]);
        struct orbit *small = orbit_create("small", nine, NULL);
        CHECK(small);
        GIVES(orbit_call(small, 1, &area, NULL, NULL, 0, &end), 0);
        CHECK(end.value == 9);
        GIVES(orbit_destroy(small), 0);
        return 0;
    }
    struct orbit *orbit = orbit_create("after", nine, NULL);
    CHECK(orbit);
    GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 0, &end), 0);
    CHECK(end.value == 9);
    GIVES(orbit_destroy(orbit), 0);
    return 0;
}
