/* Faults of the task, for tests: only where ORBIT_HERDER_FAULTS names a file that says which. */
#include "herder.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static volatile int sink;

static void write_to_null(void)
{
    volatile int *volatile nowhere = NULL;
    *nowhere = 1;
}

static void loop_for_ever(void)
{
    for (;;)
        sink++;
}

static void allocate_for_ever(void)
{
    for (;;) {
        char *block = malloc(1 << 20);
        /* Where an allocation fails, a careless program writes all the same. */
        memset(block, 1, 1 << 20);
        sink += block[4096];
    }
}

/* Not inlined and used after the inner call: each level has a frame of its own. */
static __attribute__((noinline)) int recurse_for_ever(int level)
{
    volatile char frame[512];
    frame[level & 511] = (char)level;
    if (sink == -1)
        return level;
    return recurse_for_ever(level + 1) + frame[level & 511];
}

void do_fault(uint32_t fault)
{
    switch (fault) {
    case FAULT_NULL_WRITE:
        write_to_null();
        break;
    case FAULT_ENDLESS_LOOP:
        loop_for_ever();
        break;
    case FAULT_MEMORY:
        allocate_for_ever();
        break;
    case FAULT_RECURSION:
        sink = recurse_for_ever(0);
        break;
    case FAULT_KILL:
        kill(getpid(), SIGKILL);
        break;
    default:
        break;
    }
}
