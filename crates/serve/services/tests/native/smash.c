/* Harms what a run needs for its end, in the way that its arguments name. */
#include "orbit_service.h"

static long call(long number, long a, long b, long c, long d)
{
	long result;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return result;
}

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	(void)event;
	char way = context->length ? *(const char *)context->arguments : 0;
	volatile char local[64];
	if (way == 'u') /* upwards from an array on its stack */
		for (volatile char *at = local;; at++)
			*at = 0x5a;
	if (way == 'c') /* around its context */
		for (long at = -50000; at < 50000; at++)
			((volatile char *)context)[at] = 0x5a;
	if (way == 'r') /* its saved registers and where it returns to */
		for (long at = 0; at < 16; at++)
			((volatile long *)__builtin_frame_address(0))[at] = 0x5a5a5a5a5a5aL;
	if (way == 'm') { /* no signal reaches it */
		unsigned long all = ~0UL;
		call(14, 0, (long)&all, 0, 8);
		for (;;)
			;
	}
	local[0] = way;
}
