// A wild handler, drawn at random: the argument is a seed (8 bytes). It spins, writes where it may
// not, divides by zero, calls with forged handles and bad pointers, allocates, recurses, and often
// does several of these.
#include "orbit_service.h"

static uint64_t seed;
static volatile char own[4096];

static uint64_t next(void)
{
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return seed * 0x2545f4914f6cdd1dull;
}

static __attribute__((noinline)) char recurse(volatile char *above, uint64_t depth)
{
	volatile char here[200];
	here[0] = *above;
	return depth ? recurse(here, depth - 1) + here[0] : 0;
}

// An address that is nobody's to write: below the first page, of a slot's code, of another slot, or
// none at all.
static volatile char *forbidden(const struct orbit_context *context)
{
	uint64_t offset = next() % 0x10000;
	switch (next() % 4) {
	case 0:
		return (volatile char *)(uintptr_t)(offset % 4096);
	case 1:
		return (volatile char *)(uintptr_t)((uint64_t)(uintptr_t)orbit_handler / 0x10000 * 0x10000 + offset);
	case 2:
		return (volatile char *)(uintptr_t)(context->arguments / 0x10000 * 0x10000 + 0x10000 + offset);
	default:
		return (volatile char *)(uintptr_t)0xdead000000000000ull;
	}
}

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	const uint64_t *first = (const uint64_t *)(uintptr_t)context->arguments;
	(void)event;
	if (!seed)
		seed = context->length >= 8 ? *first | 1 : 1;
	for (uint64_t left = next() % 6; left; left--) {
		switch (next() % 10) {
		case 0:
			for (volatile long i = 0;; i++)
				;
		case 1:
			*forbidden(context) = 1;
			break;
		case 2: {
			volatile int number = 7, zero = 0;
			own[0] = (char)(number / zero);
			break;
		}
		case 3:
			for (int i = 0; i < 100; i++)
				orbit_set(next(), (int64_t)next());
			break;
		case 4:
			if (context->handles)
				orbit_get(context->handle[0], (int64_t *)(uintptr_t)forbidden(context));
			break;
		case 5:
			own[0] = recurse(own, next() % 100000);
			break;
		case 6:
			__builtin_trap();
		case 7:
			for (uint64_t i = next() % 5000; i; i--)
				own[next() % sizeof own] = (char)i;
			break;
		case 8:
			for (;;)
				orbit_now();
#ifndef __wasm__
		case 9: {
			char *memory;
			while ((memory = orbit_alloc(next() % 3000)))
				if (next() % 3)
					orbit_free(memory);
			break;
		}
#endif
		}
	}
}
