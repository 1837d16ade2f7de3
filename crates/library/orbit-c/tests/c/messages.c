/* Every sentence of an error makes sense in C: it has no names of another language, and says
 * what was wrong. */
#include "check.h"
#include <stdint.h>

static long nothing(void *store, void *args)
{
    (void)store, (void)args;
    return 0;
}

/* A failure whose sentence has these two parts. */
static void says(long failed, const char *one, const char *two)
{
    const char *text = orbit_last_error();
    CHECK(failed && text[0]);
    if (!strstr(text, one) || !strstr(text, two) || strstr(text, "::") || strstr(text, "init_with")) {
        fprintf(stderr, "not a sentence with \"%s\" and \"%s\":\n  %s\n", one, two, text);
        exit(1);
    }
}

int main(void)
{
    struct orbit *orbit = orbit_create("one", nothing, NULL);
    struct orbit_area_options options = ORBIT_AREA_OPTIONS_INIT;
    options.name = "small";
    options.limit = 8192;
    struct orbit_area *area = orbit_area_create_with(&options);
    CHECK(orbit && area);
    struct orbit_outcome end;

    /* Sizes: none is an object, an area or a list. */
    says(orbit_alloc(area, (size_t)-100) == NULL, "an object in area \"small\"", "-100");
    says(orbit_realloc(area, orbit_alloc(area, 1), (size_t)-1) == NULL, "-1", "negative");
    says(orbit_calloc(area, SIZE_MAX / 2, 3) == NULL, "3 bytes", "more");
    says(orbit_area_create((size_t)-4096, NULL) == NULL, "the size of area", "-4096");
    options.limit = (size_t)-1;
    says(orbit_area_create_with(&options) == NULL, "the limit of area \"small\"", "-1");
    options.limit = 100;
    options.init_size = 101;
    says(orbit_area_create_with(&options) == NULL, "limit of 100 bytes", "raise the limit");
    options.limit = (size_t)1 << 45;
    says(orbit_area_create_with(&options) == NULL, "32768 GiB", "lower limits");
    says(orbit_alloc(area, 10000) == NULL, "larger than the area's limit of 8 KiB", "higher limit");
    while (orbit_alloc(area, 500) != NULL)
        ;
    says(1, "area \"small\" is full", "free objects");
    says(orbit_call(orbit, 0, NULL, NULL, &end, (size_t)-8, &end), "the arguments", "-8");
    says(orbit_call(orbit, 0, NULL, NULL, &end, 70000, &end), "70000 bytes of arguments", "65536");
    says(orbit_call(orbit, (size_t)-1, &area, NULL, NULL, 0, &end), "too long", "areas");

    /* Pointers. */
    says(orbit_call(orbit, 2, NULL, NULL, NULL, 0, &end), "the list of areas is NULL", "count is 2");
    says(orbit_call(orbit, 0, NULL, NULL, NULL, 8, &end), "the arguments: the pointer is NULL", "8 bytes");
    says(orbit_create_with(NULL) == NULL, "struct orbit_options is NULL", "ORBIT_OPTIONS_INIT");
    says(orbit_stats(orbit, NULL), "counters", "NULL");
    says(orbit_pull(orbit, NULL), "the update", "NULL");
    says(orbit_free(&end), "no area", "allocation");
    says(orbit_free((char *)orbit_alloc(orbit_area_create(100, NULL), 64) + 8), "inside an object", "pass");
    says(orbit_area_adopt(&end, 4096) == NULL, "4096 bytes at", "page size");
    says(orbit_aligned_alloc(area, 24, 8) == NULL, "alignment of 24", "power of two");

    /* The rest. */
    struct orbit_config config = ORBIT_CONFIG_INIT;
    says(orbit_init_with(&config), "set up already", "configuration");
    GIVES(orbit_call(orbit, 1, &area, NULL, NULL, 0, &end), 0);
    says(orbit_area_destroy(area), "used by an orbit", "detach");
    options.limit = 0;
    options.engine = 9;
    says(orbit_area_create_with(&options) == NULL, "engine number 9", "enum orbit_engine");
    struct orbit_update *update = orbit_update_create();
    says(orbit_push(update), "from an orbit to main", "task");
    says(orbit_apply(update), "pull_orbit", "orbit_pull");
    GIVES(orbit_destroy(orbit), 0);
    says(orbit_call(orbit, 0, NULL, NULL, NULL, 0, &end), "orbit", "destroyed");
    return 0;
}
