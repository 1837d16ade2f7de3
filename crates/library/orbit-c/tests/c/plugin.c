/* A library that a program loads while orbits exist. */
#include <orbit.h>

#ifndef ADDS
#define ADDS 1000
#endif

long plugin_entry(void *store, void *args)
{
    (void)store;
    return **(long **)args + ADDS;
}
