/* Without /proc everything works, if more slowly. */
#define _GNU_SOURCE
#include "check.h"
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

static long read_number(void *store, void *args)
{
    (void)store;
    long now = **(long **)args;
    **(long **)args = -1; /* must be gone at the next call */
    return now;
}

int main(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", "/proc", "tmpfs", 0, NULL) != 0) {
        printf("SKIP: needs the right to hide /proc in a mount namespace: %s\n", strerror(errno));
        return 0;
    }
    CHECK(access("/proc/self", F_OK) != 0);
    struct orbit *orbit = orbit_create("reader", read_number, NULL);
    CHECK(orbit);
    struct orbit_area *area = orbit_area_create(1 << 20, NULL);
    CHECK(area);
    char *bulk = orbit_alloc(area, 1 << 19);
    long *number = orbit_alloc(area, sizeof *number);
    CHECK(number && bulk);
    struct orbit_outcome end;
    for (*number = 0; *number < 100; ++*number) {
        memset(bulk, (int)*number, 1 << 19);
        GIVES(orbit_call(orbit, 1, &area, NULL, &number, sizeof number, &end), 0);
        CHECK(end.value == *number);
    }
    GIVES(orbit_destroy(orbit), 0);
    return 0;
}
