/* What the C test programs share: a check that says what failed and where, with the library's
 * last sentence. */
#ifndef CHECK_H
#define CHECK_H
#include <dirent.h>
#include <errno.h>
#include <orbit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "%s:%d: not so: %s\n  last error: %s\n", __FILE__, __LINE__, #condition, orbit_last_error()); \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

/* An answer, which must be this; a failure must have a sentence. */
#define GIVES(expression, wanted)                                                                               \
    do {                                                                                                        \
        long got_ = (long)(expression), wanted_ = (long)(wanted);                                               \
        if (got_ != wanted_ || (wanted_ < 0 && orbit_last_error()[0] == 0)) {                                   \
            fprintf(stderr, "%s:%d: %s gives %ld, not %ld\n  last error: %s\n", __FILE__, __LINE__, #expression, got_,  \
                    wanted_, orbit_last_error());                                                               \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

/* A pointer that must be NULL with this errno. */
#define FAILS(expression, wanted)                                                                               \
    do {                                                                                                        \
        errno = 0;                                                                                              \
        const void *got_ = (expression);                                                                        \
        int errno_ = errno;                                                                                     \
        if (got_ != NULL || errno_ != (wanted)) {                                                               \
            fprintf(stderr, "%s:%d: %s gives %p, errno %d, not NULL and %d\n  last error: %s\n", __FILE__, __LINE__, \
                    #expression, got_, errno_, (wanted), orbit_last_error());                                   \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)
static inline int entries(const char *directory)
{
    int count = 0;
    DIR *open = opendir(directory);
    while (open && readdir(open))
        count++;
    if (open)
        closedir(open);
    return count;
}

/* Whether the threads are as many again as `entries` counted in /proc/self/task. One that has been
 * joined stays listed until the kernel has reaped it. */
static inline int threads_are_again(int threads)
{
    for (int tries = 0; tries < 10000 && entries("/proc/self/task") != threads; tries++)
        usleep(1000);
    return entries("/proc/self/task") == threads;
}
#endif
