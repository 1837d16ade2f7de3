// Computes for as many rounds as its arguments say (a uint32_t), in a table of its own, and keeps
// what it found.
#include "orbit_service.h"
static uint64_t table[1024];
volatile uint64_t found;
void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	const uint32_t *rounds = (const uint32_t *)(uintptr_t)context->arguments;
	uint64_t x = event->value | 1;
	for (uint32_t i = 0; context->length >= 4 && i < *rounds; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		table[x % 1024] += x >> 32;
		if (table[(x >> 10) % 1024] & 1)
			x += table[i % 1024];
	}
	found = x;
}
