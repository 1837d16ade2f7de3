// Misbehaves as its first argument says.
#include "orbit_service.h"
static void recurse(volatile char *above)
{
	volatile char here[256];
	here[0] = *above;
	recurse(here);
	here[1] = 1;
}
void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	const char *arguments = (const char *)(uintptr_t)context->arguments;
	(void)event;
	switch (context->length ? arguments[0] : 0) {
	case 's':
		for (volatile long i = 0;; i++)
			;
	case 'c': // loops in calls of the library
		for (;;)
			orbit_now();
#ifdef __wasm__
	case 'm': // allocates without end
		while (__builtin_wasm_memory_grow(0, 1) != (unsigned long)-1)
			;
		__builtin_trap();
#else
	case 'm':
		while (orbit_alloc(16))
			;
		__builtin_trap();
#endif
	case 'n':
		*(volatile int *)8 = 1;
		break;
	case 'w': // its own code
		*(volatile char *)(uintptr_t)orbit_handler = 0x90;
		break;
	case 'o': // another slot's data
		*(volatile char *)(context->arguments + 0x10000) = 1;
		break;
	case 'g': // a bad pointer to a call
		orbit_get(context->handle[0], (int64_t *)16);
		break;
	case 'd': {
		volatile int number = 100, zero = 0;
		number = number / zero;
		break;
	}
	case 'i':
		__builtin_trap();
	case 'r': {
		char here = 0;
		recurse(&here);
		break;
	}
#ifndef __wasm__
	case 'x': // ends the process that runs it
		__asm__ volatile("syscall" : : "a"(231), "D"(0) : "rcx", "r11", "memory");
		break;
#endif
	case 'f': // forged handles, and values out of range
		for (uint64_t n = 0; n < 8; n++)
			orbit_set(context->handle[0] + 1 + n, 5);
		orbit_set(context->handle[0], -100);
		break;
	}
}
