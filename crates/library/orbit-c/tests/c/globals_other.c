#include "globals.h"
ORBIT_GLOBAL(int in_other_file[1000]);
ORBIT_GLOBAL(static char odd_size[13]) = "twelve chars";
int neighbour_of_the_section = 5;
long sum_other_file(void)
{
    long sum = odd_size[0];
    for (int i = 0; i < 1000; i++)
        sum += in_other_file[i];
    return sum;
}
