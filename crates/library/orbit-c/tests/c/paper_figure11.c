/* Figure 11 of the paper, its loop as printed: the watchdog's value says what main calls next. A
 * round in which a thread made no step is diagnosed. */
#include <orbit_paper.h>

#include <stdbool.h>
#include <stdio.h>

enum { WATCHDOG, DIAGNOSIS };
struct seen {
    long steps;
    int thread;
};
struct history {
    long steps, diagnosed;
};

static void *remembers(void)
{
    return calloc(1, sizeof(struct history));
}

static long wd_func(void *argbuf, void *store)
{
    struct seen *now = *(struct seen **)argbuf;
    struct history *before = store;
    bool stuck = now->steps == before->steps;
    before->steps = now->steps;
    return stuck ? DIAGNOSIS : WATCHDOG;
}

static long diag_func(void *argbuf, void *store)
{
    struct seen *now = *(struct seen **)argbuf;
    struct history *before = store;
    before->diagnosed += now->thread == 7;
    return WATCHDOG;
}

static long diagnosed(void *argbuf, void *store)
{
    return argbuf == NULL ? ((struct history *)store)->diagnosed : -1;
}

static orbit *ob;
static orbit_area *area, **wd_areas = &area, **diag_areas = &area;
static struct seen *now;
static int rounds, diagnoses;

void watchdog_loop() {
    long next_op = WATCHDOG;
    while (true) {
        if (next_op == WATCHDOG)
            next_op = orbit_call(ob, 1, wd_areas, wd_func, &now, sizeof(now));
        else if (next_op == DIAGNOSIS)
            next_op = orbit_call(ob, 1, diag_areas, diag_func, &now, sizeof(now));
        /* Every other watchdog's round sees a step. */
        if (next_op == DIAGNOSIS)
            diagnoses++;
        else if (next_op != WATCHDOG || ++rounds == 15)
            break;
        else if (rounds % 3 != 1)
            now->steps++;
    }
}

int main(void)
{
    ob = orbit_create("watchdog", wd_func, remembers);
    area = orbit_area_create(4096);
    if (ob == NULL || area == NULL)
        return 1;
    now = orbit_alloc(area, sizeof *now);
    now->thread = 7;
    now->steps = 1;
    watchdog_loop();
    long found = orbit_call(ob, 0, NULL, diagnosed, NULL, 0);
    printf("%d rounds, %d diagnoses, %ld found: %s\n", rounds, diagnoses, found, orbit_last_error());
    return rounds == 15 && diagnoses == 5 && found == 5 ? 0 : 1;
}
