/* While an orbit that keeps its calls is down, a call's function that its next process will lack
 * is rejected as ever; a call that was taken and whose function the next process lacks all the
 * same, since it is of another template, ends alone. Arguments: two plugins, which add 1000 and
 * 2000. */
#include "plugins.h"
#include <signal.h>

static const orbit_entry wild = (orbit_entry)0x1234567000;

/* An orbit that keeps its calls, and stays down for a while after its fourth crash. */
static struct orbit *keeping(void)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "keeping";
    options.entry = own;
    options.pending = ORBIT_PENDING_KEEP;
    options.first_pause_us = 700000;
    struct orbit *orbit = orbit_create_with(&options);
    CHECK(orbit);
    GIVES(value(orbit, NULL), 1);
    return orbit;
}

static void take_down(struct orbit *orbit)
{
    for (int i = 0; i < 4; i++)
        crash_it(orbit);
    CHECK(process_of(orbit) == 0);
}

static void refuses_what_it_lacks(const char *plugin)
{
    void *handle;
    struct orbit *orbit = keeping();
    orbit_entry function = load(plugin, &handle);
    take_down(orbit);
    FAILS(orbit_call_async(orbit, 0, 0, NULL, wild, NULL, 0), EINVAL);
    CHECK(strstr(orbit_last_error(), "not the address of a function"));
    FAILS(orbit_call_async(orbit, 0, 0, NULL, function, NULL, 0), EINVAL);
    CHECK(strstr(orbit_last_error(), "make the orbit again"));
    CHECK(process_of(orbit) == 0);
    GIVES(value(orbit, own), 1);
    struct orbit_counters stats;
    GIVES(orbit_stats(orbit, &stats), 0);
    CHECK(stats.crashes == 4);
    GIVES(orbit_destroy(orbit), 0);
    dlclose(handle);
}

static void ends_alone(const char *one, const char *two)
{
    void *handle, *other;
    orbit_entry function = load(one, &handle);
    /* From here on the template knows the first plugin, and the next template, made of the
     * second, will not. */
    struct orbit *orbit = orbit_create("of the first", function, NULL);
    CHECK(orbit && orbit_destroy(orbit) == 0);
    orbit = keeping();
    GIVES(value(orbit, function), 1001);
    int template = template_of(orbit);
    orbit_entry others = load(two, &other);
    dlclose(handle);
    struct orbit *of_second = orbit_create("of the second", others, NULL);
    CHECK(of_second && template_of(of_second) != template);
    if (load(one, &handle) != function) {
        printf("SKIP: the plugin was not loaded again at its address\n");
        return;
    }
    take_down(orbit);
    struct orbit_future *lacked = orbit_call_async(orbit, 0, 0, NULL, function, NULL, 0);
    CHECK(lacked);
    GIVES(kill(template, SIGKILL), 0);
    GIVES(value(orbit, NULL), 1);
    CHECK(template_of(orbit) != template);
    struct orbit_outcome end;
    GIVES(orbit_future_wait(lacked, &end), -ECANCELED);
    orbit_future_free(lacked);
    struct orbit_counters stats;
    GIVES(orbit_stats(orbit, &stats), 0);
    CHECK(stats.crashes == 4);
    GIVES(value(orbit, function), -EINVAL);
    GIVES(orbit_destroy(orbit), 0);
    GIVES(orbit_destroy(of_second), 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    GIVES(orbit_init(), 0);
    refuses_what_it_lacks(argv[1]);
    ends_alone(argv[1], argv[2]);
    return 0;
}
