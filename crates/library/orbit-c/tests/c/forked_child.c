/* A forked child has none of its parent's orbits, gets an error that says so, and may make its own;
 * the parent is not disturbed. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static long read_number(void *store, void *args)
{
    (void)store;
    return **(long **)args;
}

static long own_call(struct orbit *orbit, struct orbit_area *area, long *number)
{
    struct orbit_outcome end;
    GIVES(orbit_call(orbit, 1, &area, NULL, &number, sizeof number, &end), 0);
    return end.value;
}

int main(void)
{
    struct orbit *orbit = orbit_create("parent", read_number, NULL);
    struct orbit_area *area = orbit_area_create(4096, NULL);
    CHECK(orbit && area);
    long *number = orbit_alloc(area, sizeof *number);
    *number = 1;
    CHECK(own_call(orbit, area, number) == 1);
    struct orbit_future *future = orbit_call_async(orbit, 0, 1, &area, NULL, &number, sizeof number);
    pid_t child = fork();
    if (child == 0) {
        struct orbit_outcome end;
        GIVES(orbit_call(orbit, 1, &area, NULL, &number, sizeof number, &end), -ECHILD);
        GIVES(orbit_destroy(orbit), -ECHILD);
        GIVES(orbit_future_wait(future, &end), -ECHILD);
        FAILS(orbit_alloc(area, 8), ECHILD);
        /* The parent's objects are memory of the child, not objects of its own. */
        *number += 1;
        GIVES(orbit_free(number), -ECHILD);
        CHECK(strstr(orbit_last_error(), "forked"));
        FAILS(orbit_realloc(area, number, 100), ECHILD);
        CHECK(orbit_usable_size(number) == 0);
        GIVES(orbit_area_destroy(area), -ECHILD);
        FAILS(orbit_calloc(area, 1, 8), ECHILD);
        struct orbit_update *none;
        GIVES(orbit_pull(orbit, &none), -ECHILD);
        GIVES(orbit_shutdown(), 0);
        struct orbit *mine = orbit_create("child", read_number, NULL);
        struct orbit_area *my_area = orbit_area_create(4096, NULL);
        CHECK(mine && my_area);
        long *my_number = orbit_alloc(my_area, sizeof *my_number);
        *my_number = 17;
        CHECK(own_call(mine, my_area, my_number) == 17);
        GIVES(orbit_destroy(mine), 0);
        exit(0);
    }
    for (*number = 2; *number < 200; ++*number)
        CHECK(own_call(orbit, area, number) == *number);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* The program's own waits see no orbit. */
    CHECK(waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD);
    GIVES(orbit_future_wait(future, NULL), 0);
    CHECK(own_call(orbit, area, number) == 200);
    GIVES(orbit_destroy(orbit), 0);
    return 0;
}
