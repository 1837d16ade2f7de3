/* A plugin is unloaded, and another one loaded at its address: new orbits run the new one, the
 * others the one they were made with, restarted or not. What changes no code makes no new
 * template, if the plugins can be distinguished. Arguments: three plugins, which add 1000, 2000
 * and 3000, and "named" if they have build ids. */
#include "plugins.h"

/* Loads a plugin at the address of the one that was just unloaded. The library's thread may have
 * mapped something there. */
static void load_at(orbit_entry entry, const char *plugin, void **handle)
{
    if (load(plugin, handle) != entry) {
        printf("SKIP: the plugin was not loaded at the address of the one before\n");
        exit(0);
    }
}

int main(int argc, char **argv)
{
    void *handle, *bystander;
    CHECK(argc >= 4);
    GIVES(orbit_init(), 0);
    orbit_entry stays = load(argv[3], &bystander);
    orbit_entry entry = load(argv[1], &handle);
    struct orbit *first = orbit_create("first", entry, NULL);
    CHECK(first);
    GIVES(value(first, NULL), 1001);
    int template = template_of(first);
    dlclose(handle);
    load_at(entry, argv[2], &handle);

    /* The program's own code, and that of a plugin that was not unloaded, is where it was. */
    struct orbit *programs = orbit_create("programs", own, NULL);
    CHECK(programs);
    GIVES(value(programs, NULL), 1);
    GIVES(value(programs, stays), 3001);
    CHECK(template_of(programs) == template);
    struct orbit *bystanders = orbit_create("bystanders", stays, NULL);
    CHECK(bystanders && template_of(bystanders) == template);
    GIVES(orbit_destroy(bystanders), 0);

    struct orbit *second = orbit_create("second", entry, NULL);
    CHECK(second);
    GIVES(value(second, NULL), 2001);
    GIVES(value(second, entry), 2001);
    CHECK(template_of(second) != template);

    GIVES(value(first, entry), -EINVAL);
    GIVES(value(programs, entry), -EINVAL);
    GIVES(value(first, NULL), 1001);
    crash_it(first);
    GIVES(orbit_wait_ready(first, 20000000), 0);
    GIVES(value(first, NULL), 1001);
    CHECK(template_of(first) == template);
    crash_it(second);
    GIVES(orbit_wait_ready(second, 20000000), 0);
    GIVES(value(second, NULL), 2001);

    dlclose(handle);
    load_at(entry, argv[1], &handle);
    struct orbit *third = orbit_create("third", entry, NULL);
    CHECK(third);
    GIVES(value(third, NULL), 1001);
    template = template_of(third);
    dlclose(handle);
    load_at(entry, argv[1], &handle);
    struct orbit *fourth = orbit_create("fourth", entry, NULL);
    CHECK(fourth);
    GIVES(value(fourth, NULL), 1001);
    CHECK((template_of(fourth) == template) == (argc == 5));

    struct orbit *orbits[] = {first, second, programs, third, fourth};
    for (int i = 0; i < 5; i++)
        GIVES(orbit_destroy(orbits[i]), 0);
    return 0;
}
