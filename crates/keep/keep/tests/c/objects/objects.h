/* What the cases of the program `objects` share. A case makes some kernel object, changes it
 * after a checkpoint, and after a crash tells whether it is as it was at the checkpoint. */
#pragma once
#include <stdio.h>
#include <stdlib.h>

struct object_case {
    const char *name;
    void (*make)(void);   /* before the checkpoint */
    void (*change)(void); /* after it */
    void (*check)(void);  /* after the rollback */
};

/* Exit statuses. */
enum { IS_KEPT = 0, IS_WRONG = 1, IS_LACKING = 2 };

#define IS(condition)                                                                          \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: not so: %s (%m)\n", __FILE__, __LINE__, #condition);       \
            _exit(IS_WRONG);                                                                   \
        }                                                                                      \
    } while (0)

/* What the machine or a filter lacks is no failure. */
#define NEEDS(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "needs: %s (%m)\n", #condition);                                   \
            _exit(IS_LACKING);                                                                 \
        }                                                                                      \
    } while (0)

extern const struct object_case FILES[], MEMORY[], SIGNALS[], PROCESS[], IPC[];
