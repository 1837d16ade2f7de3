/* Sizes of the log: the largest arguments fit into the smallest log; no log is smaller than was
 * asked for. */
#include "check.h"
#include <unistd.h>

static long nine(void *store, void *args)
{
    (void)store, (void)args;
    return 9;
}

static struct orbit *with(size_t log_size, int when_full)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.entry = nine;
    options.log_size = log_size;
    options.when_full = when_full;
    return orbit_create_with(&options);
}

int main(void)
{
    static char args[ORBIT_MAX_ARGS];
    size_t sizes[] = {0, 1, 128 << 10, 256 << 10, 300000};
    struct orbit_outcome end;
    alarm(100);
    for (unsigned at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        for (int when_full = ORBIT_FULL_BLOCK; when_full <= ORBIT_FULL_DROP_OLDEST; when_full++) {
            struct orbit *orbit = with(sizes[at], when_full);
            CHECK(orbit);
            for (size_t less = 0; less <= 32; less++)
                GIVES(orbit_call(orbit, 0, NULL, NULL, args, sizeof args - less, &end), 0);
            GIVES(orbit_destroy(orbit), 0);
        }
    }
    FAILS(with(((size_t)1 << 30) + 1, ORBIT_FULL_BLOCK), E2BIG);
    CHECK(strstr(orbit_last_error(), "1 GiB"));
    FAILS(with((size_t)-1, ORBIT_FULL_BLOCK), E2BIG);
    FAILS(with((size_t)-4096, ORBIT_FULL_BLOCK), E2BIG);
    return 0;
}
