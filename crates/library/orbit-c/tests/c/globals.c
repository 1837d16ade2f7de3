/* Global variables of several source files in an adopted section, which holds nothing else and
 * is whole pages. */
#include "check.h"
#include "globals.h"

ORBIT_GLOBAL(int hits) = 3;
ORBIT_GLOBAL(static struct { long a; char b; } pair) = {7, 'x'};
int not_in_the_area = 1;

static long inspect(void *store, void *args)
{
    (void)store, (void)args;
    return hits * 1000000L + pair.a * 100000L + sum_other_file() + not_in_the_area;
}

int main(void)
{
    struct orbit *orbit = orbit_create("globals", inspect, NULL);
    struct orbit_area *area = orbit_globals();
    CHECK(orbit && area);
    struct orbit_area_info info;
    GIVES(orbit_area_get_info(area, &info), 0);
    char *from = info.base, *to = from + info.limit;
    CHECK((char *)&hits >= from && (char *)(&hits + 1) <= to && (char *)in_other_file >= from && (char *)&pair < to);
    CHECK((char *)&not_in_the_area < from || (char *)&not_in_the_area >= to);
    CHECK((size_t)from % 4096 == 0 && info.limit % 4096 == 0);
    struct orbit_outcome end;
    for (int i = 0; i < 50; i++) {
        hits++;
        pair.a = i;
        in_other_file[i * 20]++;
        not_in_the_area = 500000;
        GIVES(orbit_call(orbit, 1, &area, NULL, NULL, 0, &end), 0);
        CHECK(end.value == (3 + i + 1) * 1000000L + i * 100000L + 't' + i + 1 + 1);
    }
    FAILS(orbit_globals(), EINVAL); /* once */
    GIVES(orbit_destroy(orbit), 0);
    GIVES(orbit_area_destroy(area), 0);
    CHECK(hits == 53);
    return 0;
}
