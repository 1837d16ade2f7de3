/* After the end of main's first thread (pthread_exit in main) the others have the same engines,
 * and adopt memory: with an area from before, and without ("fresh"). */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 256, PAGE = 4096 };

static int engines[2]; /* of a large AUTO area, and of one that asks for TRACK, -1 if rejected: while the first thread lives */
static int fresh;
static struct orbit *before;
static struct orbit_area *made_before;
static char *bytes_before;

static long sum(void *store, void *args)
{
    (void)store;
    const unsigned char *bytes = *(unsigned char **)args;
    long all = 0;
    for (int page = 0; page < PAGES; page++)
        all += bytes[page * PAGE];
    return all;
}

static struct orbit_area *track(void)
{
    struct orbit_area_options options = ORBIT_AREA_OPTIONS_INIT;
    options.engine = ORBIT_ENGINE_TRACK;
    options.limit = PAGES * PAGE * 2;
    return orbit_area_create_with(&options);
}

static int engine_of(struct orbit_area *area)
{
    struct orbit_area_info info;
    GIVES(orbit_area_get_info(area, &info), 0);
    return info.engine;
}

/* Writes and calls, some times: each call sees what was written. */
static void shows_all(struct orbit *orbit, struct orbit_area *area, char *bytes)
{
    long expected = sum(NULL, &bytes);
    for (int i = 0; i < 20; i++) {
        struct orbit_outcome end;
        bytes[i * 3 * PAGE]++;
        expected++;
        GIVES(orbit_call(orbit, 1, &area, NULL, &bytes, sizeof bytes, &end), 0);
        CHECK(end.value == expected);
    }
}

/* Leaves nothing behind: what the library opens for areas is closed with the last one. */
static void inspect(int found[2])
{
    struct orbit *orbit = orbit_create("inspect", sum, NULL);
    struct orbit_area *area = orbit_area_create(PAGES * PAGE, NULL);
    CHECK(orbit && area);
    char *bytes = orbit_calloc(area, PAGES, PAGE);
    CHECK(bytes);
    shows_all(orbit, area, bytes);
    found[0] = engine_of(area);
    GIVES(orbit_destroy(orbit), 0);
    GIVES(orbit_area_destroy(area), 0);
    struct orbit_area *tracked = track();
    found[1] = tracked ? engine_of(tracked) : -1;
    if (tracked)
        GIVES(orbit_area_destroy(tracked), 0);
}

static int first_has_ended(void)
{
    char maps[8];
    FILE *file = fopen("/proc/self/maps", "r");
    size_t got = file ? fread(maps, 1, sizeof maps, file) : 0;
    if (file)
        fclose(file);
    return got == 0;
}

static void *goes_on(void *nothing)
{
    (void)nothing;
    while (!first_has_ended())
        usleep(1000);
    int now[2];
    inspect(now);
    CHECK(now[0] == engines[0] && now[1] == engines[1]);
    struct orbit *late = orbit_create("late", sum, NULL);
    CHECK(late);
    if (!fresh) {
        shows_all(before, made_before, bytes_before);
        shows_all(late, made_before, bytes_before);
    }
    char *mapped = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct orbit_area *adopted = orbit_area_adopt(mapped, PAGES * PAGE);
    CHECK(adopted);
    shows_all(late, adopted, mapped);
    GIVES(orbit_shutdown(), 0);
    GIVES(orbit_init(), 0); /* a template of a main whose first thread has ended */
    late = orbit_create("later", sum, NULL);
    CHECK(late);
    shows_all(late, adopted, mapped);
    GIVES(orbit_shutdown(), 0);
    exit(0);
}

int main(int count, char **arguments)
{
    pthread_t thread;
    fresh = count > 1 && strcmp(arguments[1], "fresh") == 0;
    inspect(engines);
    if (!fresh) {
        before = orbit_create("before", sum, NULL);
        made_before = orbit_area_create(PAGES * PAGE, NULL);
        CHECK(before && made_before);
        bytes_before = orbit_calloc(made_before, PAGES, PAGE);
        CHECK(bytes_before);
        shows_all(before, made_before, bytes_before);
    }
    CHECK(pthread_create(&thread, NULL, goes_on, NULL) == 0);
    pthread_exit(NULL);
}
