/* Code loaded after the library was set up can be an orbit's entry, and a call's function once
 * an orbit knows it; dlclose of the library itself does no harm. Arguments: the plugin, the
 * library. */
#include "check.h"
#include <dlfcn.h>

static long own(void *store, void *args)
{
    (void)store;
    return **(long **)args;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    GIVES(orbit_init(), 0);
    struct orbit *before = orbit_create("before", own, NULL);
    struct orbit_area *area = orbit_area_create(4096, NULL);
    CHECK(before && area);
    long *number = orbit_alloc(area, sizeof *number);
    struct orbit_outcome end;
    *number = 1;
    GIVES(orbit_call(before, 1, &area, NULL, &number, sizeof number, &end), 0);

    void *plugin = dlopen(argv[1], RTLD_NOW);
    CHECK(plugin);
    orbit_entry entry;
    *(void **)&entry = dlsym(plugin, "plugin_entry");
    CHECK(entry);
    /* The older orbit lacks this code. */
    GIVES(orbit_call(before, 1, &area, entry, &number, sizeof number, &end), -EINVAL);
    struct orbit *after = orbit_create("after", entry, NULL);
    CHECK(after);
    *number = 2;
    GIVES(orbit_call(after, 1, &area, NULL, &number, sizeof number, &end), 0);
    CHECK(end.value == 1002);
    GIVES(orbit_call(before, 1, &area, NULL, &number, sizeof number, &end), 0);
    CHECK(end.value == 2);
    GIVES(orbit_destroy(after), 0);
    dlclose(plugin);

    void *library = dlopen(argv[2], RTLD_NOW);
    CHECK(library && dlclose(library) == 0 && dlclose(library) == 0);
    GIVES(orbit_call(before, 1, &area, NULL, &number, sizeof number, &end), 0);
    GIVES(orbit_destroy(before), 0);
    return 0;
}
