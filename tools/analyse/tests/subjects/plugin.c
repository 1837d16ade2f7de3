// A plugin whose task reads what its constructor made.
#include <stdlib.h>
static long *values;
__attribute__((constructor)) static void make(void) {
    values = calloc(8, sizeof *values); // SITE
    values[3] = 12;
}
long TASK(void) { return values[3]; }
