/* Functions as sections, in a program that is otherwise as it was: by -finstrument-functions, which
 * gcc and clang have. One file of the program, compiled without that flag, says which:
 *
 *     #define RMK_FUNCTIONS(is) is(request) is(query)
 *     #include <rmk_functions.h>
 *
 *     cc -finstrument-functions -c server.c
 *     cc -c sections.c $(pkg-config --cflags rmk_section)
 *     cc server.o sections.o $(pkg-config --libs rmk_section)
 *
 * Each function is a section of its name, with one exit. The files compiled with the flag call two
 * functions of this header for each call of theirs; those not in the list cost some nanoseconds.
 * Functions must have names that this file can refer to: not static, of C++ only `extern "C"`. One
 * that calls itself is left at the end of its innermost call. What leaves a function otherwise than
 * by a return (longjmp, of clang an exception) leaves its section at the end of its next call. */
#ifndef RMK_FUNCTIONS_H
#define RMK_FUNCTIONS_H

#ifndef RMK_FUNCTIONS
#error "rmk_functions.h: define RMK_FUNCTIONS(is) as is(name) of each function first"
#endif

#include "rmk.h"

#define RMK_PLAIN_ __attribute__((no_instrument_function))

#define RMK_SECTION_(name)  \
    extern void name(void); \
    static int rmk_section_of_##name = -1;
RMK_FUNCTIONS(RMK_SECTION_)

RMK_PLAIN_ __attribute__((constructor(101))) static void rmk_register_functions_(void)
{
#define RMK_REGISTER_(name) rmk_section_of_##name = rmk_section(#name);
    RMK_FUNCTIONS(RMK_REGISTER_)
}

RMK_PLAIN_ void __cyg_profile_func_enter(void *function, void *caller)
{
    (void)caller;
#define RMK_ENTER_(name)            \
    if (function == (void *)&name)  \
        rmk_section_enter(rmk_section_of_##name);
    RMK_FUNCTIONS(RMK_ENTER_)
}

RMK_PLAIN_ void __cyg_profile_func_exit(void *function, void *caller)
{
    (void)caller;
#define RMK_LEAVE_(name)            \
    if (function == (void *)&name)  \
        rmk_section_leave(rmk_section_of_##name, 0);
    RMK_FUNCTIONS(RMK_LEAVE_)
}

#endif
