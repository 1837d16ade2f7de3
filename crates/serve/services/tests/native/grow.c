// Takes all the memory that it may have. It traps unless that is as many pages as its arguments say
// (a uint32_t). Wasm only.
#include "orbit_service.h"
void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	(void)event;
	while (__builtin_wasm_memory_grow(0, 1) != (unsigned long)-1)
		;
	if (__builtin_wasm_memory_size(0) != *(const uint32_t *)(uintptr_t)context->arguments)
		__builtin_trap();
}
