/* What an operation throws reaches the caller of orbit_apply, and the library continues. */
#include "check.h"
#include <stdexcept>
#include <string>

static int ran;

static long count(void *, size_t)
{
    ran++;
    return 0;
}

static long refuse(void *args, size_t len)
{
    throw std::runtime_error(std::string(static_cast<char *>(args), len));
}

/* Pushes a modification of the place that args names, and three operations, of which the second
 * throws. */
static long push(void *, void *args)
{
    int *place = *static_cast<int **>(args), value = 7;
    struct orbit_update *update = orbit_update_create();
    GIVES(orbit_update_add_modify(update, place, &value, sizeof value), 0);
    GIVES(orbit_update_add_operation(update, count, NULL, 0), 0);
    GIVES(orbit_update_add_operation(update, refuse, "no", 2), 0);
    GIVES(orbit_update_add_operation(update, count, NULL, 0), 0);
    GIVES(orbit_push(update), 0);
    return orbit_update_free(update);
}

int main()
{
    GIVES(orbit_register_operation(count), 0);
    GIVES(orbit_register_operation(refuse), 0);
    struct orbit *orbit = orbit_create("thrower", push, NULL);
    struct orbit_area *area = orbit_area_create(4096, NULL);
    CHECK(orbit && area);
    for (int round = 1; round <= 100; round++) {
        int *place = static_cast<int *>(orbit_calloc(area, 1, sizeof *place));
        struct orbit_outcome end;
        struct orbit_update *update;
        GIVES(orbit_call(orbit, 1, &area, NULL, &place, sizeof place, &end), 0);
        GIVES(orbit_pull(orbit, &update), 1);
        std::string caught;
        try {
            orbit_apply(update);
        } catch (const std::exception &error) {
            caught = error.what();
        }
        CHECK(caught == "no" && *place == 7 && ran == round);
        GIVES(orbit_update_free(update), 0);
        GIVES(orbit_free(place), 0);
    }
    /* Nothing of the library is held by what was thrown. */
    GIVES(orbit_destroy(orbit), 0);
    GIVES(orbit_area_destroy(area), 0);
    return 0;
}
