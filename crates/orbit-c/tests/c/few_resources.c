/* Limits of descriptors, processes and address space: each is an error that names it, and goes away with its cause. */
#include "check.h"
#include <sys/resource.h>
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
    } else if (strcmp(which, "processes") == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
            puts("SKIP: needs an ordinary user");
            return 0;
        }
        limit(RLIMIT_NPROC, 0);
        FAILS(orbit_create("one", nine, NULL), EAGAIN);
        CHECK(strstr(orbit_last_error(), "ulimit -u"));
        limit(RLIMIT_NPROC, RLIM_INFINITY);
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
