/* barrier FOLDER: prints "before", passes an output barrier, crashes once there, prints "after". */
#include "../../include/orbit_keep.h"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc != 2 || chdir(argv[1]) == -1)
        return 2;
    if (write(1, "before\n", 7) != 7)
        return 3;
    if (orbit_keep_if_kept_output_barrier() != 1)
        return 4;
    /* The first time only: the file is the world outside, which no rollback changes. */
    if (open("crashed", O_CREAT | O_EXCL | O_WRONLY, 0644) != -1)
        abort();
    if (write(1, "after\n", 6) != 6)
        return 5;
    return orbit_keep_if_kept_point() ? 7 : 6;
}
