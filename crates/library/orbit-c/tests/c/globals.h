#include <orbit.h>
extern int in_other_file[1000];
long sum_other_file(void);
