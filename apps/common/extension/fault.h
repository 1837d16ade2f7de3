/* Harm that a task does on request, the same in all ports, for tests and for sceptics.
 * Each port says which users may ask for it. */
#ifndef ORBIT_APPS_FAULT_H
#define ORBIT_APPS_FAULT_H

#include <stdint.h>

enum {
    FAULT_NONE = 0,
    FAULT_NULL_WRITE,   /* writes to address 0 */
    FAULT_ENDLESS_LOOP, /* never returns */
    FAULT_MEMORY,       /* allocates until there is no memory */
    FAULT_RECURSION,    /* recurses until the stack ends */
    FAULT_KILL,         /* kill -9 of its own process */
    FAULT_LIE,          /* hands back what is wrong: the port's task does it */
    FAULT_OF_PORT       /* the one that only this port has */
};

/* "segv", "hang", "memory", "recursion", "kill", "lie", or `of_port` (NULL: none). FAULT_NONE:
 * no such fault. */
int32_t fault_by_name(const char *name, const char *of_port);

/* Does this harm. Returns without any for FAULT_NONE, FAULT_LIE and FAULT_OF_PORT. */
void do_fault(int32_t fault);

#endif
