/* The faults of fault.h. Call stacks in crash reports name this file and its functions. */
#include "fault.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int sink;

int32_t fault_by_name(const char *name, const char *of_port)
{
    static const char *const names[] = {
        [FAULT_NULL_WRITE] = "segv",     [FAULT_ENDLESS_LOOP] = "hang", [FAULT_MEMORY] = "memory",
        [FAULT_RECURSION] = "recursion", [FAULT_KILL] = "kill",         [FAULT_LIE] = "lie",
    };
    for (int32_t fault = FAULT_NULL_WRITE; fault < FAULT_OF_PORT; fault++)
        if (strcmp(name, names[fault]) == 0)
            return fault;
    return of_port && strcmp(name, of_port) == 0 ? FAULT_OF_PORT : FAULT_NONE;
}

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

void do_fault(int32_t fault)
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
