/* A call's function of a plugin that was loaded after the orbit was made is rejected, and the
 * orbit that is made again has it, as the rejection says; loading alone and wild addresses make
 * no new template. Argument: a plugin, which adds 1000. */
#include "plugins.h"

/* An address where no code is. */
static const orbit_entry wild = (orbit_entry)0x1234567000;

int main(int argc, char **argv)
{
    void *handle;
    CHECK(argc == 2);
    GIVES(orbit_init(), 0);
    struct orbit *orbit = orbit_create("once", own, NULL);
    CHECK(orbit);
    GIVES(value(orbit, NULL), 1);
    int template = template_of(orbit);

    orbit_entry function = load(argv[1], &handle);
    GIVES(value(orbit, wild), -EINVAL);
    CHECK(strstr(orbit_last_error(), "not the address of a function"));
    struct orbit *other = orbit_create("other", own, NULL);
    CHECK(other && template_of(other) == template);

    GIVES(value(orbit, function), -EINVAL);
    CHECK(strstr(orbit_last_error(), "make the orbit again"));
    GIVES(value(other, function), -EINVAL);
    GIVES(orbit_destroy(orbit), 0);
    orbit = orbit_create("once", own, NULL);
    CHECK(orbit && template_of(orbit) != template);
    GIVES(value(orbit, function), 1001);

    /* Once is enough. */
    template = template_of(orbit);
    GIVES(value(other, function), -EINVAL);
    GIVES(orbit_destroy(other), 0);
    other = orbit_create("other", own, NULL);
    CHECK(other && template_of(other) == template);
    GIVES(value(other, function), 1001);
    GIVES(orbit_destroy(other), 0);
    GIVES(orbit_destroy(orbit), 0);
    return 0;
}
