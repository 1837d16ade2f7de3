// Keeps what its latest events were in the niceness that it sets: 1 posted, 2 pressure, 3 readable,
// 4 tracepoint; with a handle of its own to nothing it counts only. With argument 'w' it waits
// first, 't' waits longer than its budget.
#include "orbit_service.h"
static int64_t last[8];
void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	const char *arguments = (const char *)(uintptr_t)context->arguments;
	char way = context->length ? arguments[0] : 0;
#ifndef __wasm__
	if (way == 'w')
		orbit_sleep(3000000);
	if (way == 't')
		for (int i = 0; i < 4; i++)
			orbit_sleep(50000000);
	if (way == 'h')
		orbit_sleep(3600ull * 1000000000);
#endif
	last[event->kind & 7] += 1;
	if (way == 'v' && context->handles) // the value itself
		orbit_set(context->handle[0], (int64_t)event->value);
	else if (context->handles)
		orbit_set(context->handle[0], (int64_t)event->kind);
}
