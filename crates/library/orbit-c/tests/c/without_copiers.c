/* Where no copier can be made, or each dies, large snapshots are copied by main: such calls
 * continue, and so do small ones. */
#include "check.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BYTES = 48 << 20 };

static long first(void *store, void *args)
{
    const unsigned char *bytes = *(unsigned char **)args;
    (void)store;
    return bytes[0] == bytes[BYTES - 1] ? bytes[0] : -1;
}

/* Writes all of it and calls; gives the outcome's kind. */
static int call(struct orbit *orbit, struct orbit_area *area, unsigned char *bytes, int value)
{
    struct orbit_outcome end;
    memset(bytes, value, BYTES);
    int answer = orbit_call(orbit, 1, &area, NULL, &bytes, sizeof bytes, &end);
    CHECK(answer == 0 || answer == -ECANCELED);
    CHECK(answer != 0 || end.value == value);
    return end.kind;
}

int main(int argc, char **argv)
{
    int die = argc > 1 && strcmp(argv[1], "die") == 0;
    /* The number of root's processes is not limited. */
    if (getuid() == 0)
        CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    CHECK(orbit_init() == 0);
    struct orbit *orbit = orbit_create("copied", first, NULL);
    CHECK(orbit);
    struct orbit_area *area = orbit_area_create(64 << 20, NULL);
    CHECK(area);
    unsigned char *bytes = orbit_calloc(area, 1, BYTES);
    CHECK(bytes);
    if (die) {
        /* Copiers have no such page. */
        unsigned char *middle = (unsigned char *)(((uintptr_t)bytes + BYTES / 2) & ~(uintptr_t)4095);
        CHECK(madvise(middle, 4096, MADV_DONTFORK) == 0);
    } else {
        struct rlimit none = {0, 0};
        CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    }
    int cancelled = 0;
    for (int round = 1; round < 7; round++)
        cancelled += call(orbit, area, bytes, round) == ORBIT_CANCELLED;
    /* Tried again now and then, ever more seldom. */
    CHECK(cancelled <= (die ? 3 : 0));
    bytes[0] = bytes[BYTES - 1] = 9;
    struct orbit_outcome end;
    GIVES(orbit_call(orbit, 1, &area, NULL, &bytes, sizeof bytes, &end), 0);
    CHECK(end.value == 9);
    return 0;
}
