/* A library that a program loads while orbits exist. */
#include <orbit.h>

long plugin_entry(void *store, void *args)
{
    (void)store;
    return **(long **)args + 1000;
}
