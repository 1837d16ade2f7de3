/* Faults of the tasks, for tests and for those who do not believe: only the status page asks for
 * them, with OrbitFaults On. */
#include "tasks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int sink;

enum task_fault fault_by_name(const char *name)
{
    static const struct {
        const char *name;
        enum task_fault fault;
    } faults[] = {
        {"segv", FAULT_NULL_WRITE},      {"hang", FAULT_ENDLESS_LOOP}, {"memory", FAULT_MEMORY},
        {"recursion", FAULT_RECURSION},  {"kill", FAULT_KILL},         {"redirect", FAULT_REDIRECT},
        {"lie", FAULT_LIE},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (strcmp(faults[i].name, name) == 0)
            return faults[i].fault;
    return FAULT_NONE;
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

/* Two fail-over backends, neither usable, each of which names the other. */
static __attribute__((noinline)) int find_route(const int *redirects, const int *usable, int worker)
{
    volatile char frame[512];
    frame[worker] = (char)usable[worker];
    if (frame[worker])
        return worker;
    return find_route(redirects, usable, redirects[worker]) + frame[worker];
}

void do_fault(int32_t fault)
{
    static const int redirects[] = {1, 0};
    static int usable[] = {0, 0};
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
    case FAULT_REDIRECT:
        usable[0] = sink == -1;
        sink = find_route(redirects, usable, 0);
        break;
    default:
        break;
    }
}
