/* What a task throws and does not catch is reported as a crash at the place that threw it; what it
 * catches itself is its own. */
#include "check.h"
#include <stdexcept>
#include <signal.h>

__attribute__((noinline)) long refuse(long value)
{
    if (value > 1)
        throw std::runtime_error("the task refuses");
    return value;
}

static long catches(void *, void *args)
{
    try {
        return refuse(*static_cast<long *>(args)) + refuse(1);
    } catch (const std::exception &) {
        return -7;
    }
}

static long throws(void *, void *args)
{
    return refuse(*static_cast<long *>(args)) + 1;
}

static void *throws_first()
{
    return reinterpret_cast<void *>(refuse(3) + 1);
}

/* The crash names the function that threw, and its caller. */
static void reports(const struct orbit_outcome *end, const char *caller)
{
    CHECK(end->kind == ORBIT_CRASHED && end->signal == SIGABRT);
    const char *stack = strchr(end->text, '\n');
    printf("%s\n", end->text);
    CHECK(stack && strstr(stack, caller));
    const char *blamed = strstr(end->text, "refuse(long)");
    CHECK(blamed && blamed < stack);
}

int main()
{
    struct orbit *orbit = orbit_create("thrower", throws, NULL);
    CHECK(orbit);
    struct orbit_outcome end;
    for (long value = 1; value <= 3; value++) {
        GIVES(orbit_call(orbit, 0, NULL, NULL, &value, sizeof value, &end), value > 1 ? -EREMOTEIO : 0);
        if (value > 1)
            reports(&end, "throws");
        else
            CHECK(end.value == 2);
        GIVES(orbit_wait_ready(orbit, 60000000), 0);
        GIVES(orbit_call(orbit, 0, NULL, catches, &value, sizeof value, &end), 0);
        CHECK(end.value == (value > 1 ? -7 : 2));
    }
    GIVES(orbit_destroy(orbit), 0);
    orbit = orbit_create("thrower", throws, throws_first);
    CHECK(orbit);
    long value = 1;
    GIVES(orbit_call(orbit, 0, NULL, NULL, &value, sizeof value, &end), -EREMOTEIO);
    reports(&end, "throws_first");
    return orbit_destroy(orbit);
}
