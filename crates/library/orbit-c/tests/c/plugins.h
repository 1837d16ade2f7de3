/* What the programs that load plugins share. */
#ifndef PLUGINS_H
#define PLUGINS_H
#include "check.h"
#include <dlfcn.h>

static struct orbit_area *plugins_area;
static long *plugins_number;

/* An entry of the program's own: the number at the address in its arguments. */
static inline long own(void *store, void *args)
{
    (void)store;
    return **(long **)args;
}

static inline long crash(void *store, void *args)
{
    (void)store;
    (void)args;
    abort();
}

/* A plugin's entry; `*handle` is for dlclose. */
static inline orbit_entry load(const char *plugin, void **handle)
{
    orbit_entry entry;
    *handle = dlopen(plugin, RTLD_NOW);
    CHECK(*handle);
    *(void **)&entry = dlsym(*handle, "plugin_entry");
    CHECK(entry);
    return entry;
}

/* What a call gives with the number 1 in an area, or -errno. */
static inline long value(struct orbit *orbit, orbit_entry func_once)
{
    if (plugins_area == NULL) {
        CHECK(plugins_area = orbit_area_create(4096, NULL));
        CHECK(plugins_number = orbit_alloc(plugins_area, sizeof *plugins_number));
        *plugins_number = 1;
    }
    struct orbit_outcome end;
    int called = orbit_call(orbit, 1, &plugins_area, func_once, &plugins_number, sizeof plugins_number, &end);
    return called < 0 ? called : end.value;
}

/* Has the orbit's process crash; its next one is on its way. */
static inline void crash_it(struct orbit *orbit)
{
    struct orbit_outcome end;
    GIVES(orbit_wait_ready(orbit, 20000000), 0);
    GIVES(orbit_call(orbit, 0, NULL, crash, NULL, 0, &end), -EREMOTEIO);
    CHECK(end.kind == ORBIT_CRASHED);
}

static inline int process_of(struct orbit *orbit)
{
    struct orbit_counters stats;
    GIVES(orbit_stats(orbit, &stats), 0);
    return stats.pid;
}

/* The template that the orbit's process comes from: its parent. */
static inline int template_of(struct orbit *orbit)
{
    char path[64], line[512];
    int parent;
    snprintf(path, sizeof path, "/proc/%d/stat", process_of(orbit));
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(line, sizeof line, file));
    fclose(file);
    CHECK(sscanf(strrchr(line, ')') + 1, " %*c %d", &parent) == 1);
    return parent;
}
#endif
