// A service for measurements: touches so many bytes of its data, a byte in each cache line, and
// answers its event's value, also through its first handle, if it has one. Arguments: the bytes,
// and whether to spin instead until it is aborted (two uint32_t).
#include "orbit_service.h"

static volatile unsigned char data[24 * 1024];

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	const uint32_t *arguments = (const uint32_t *)(uintptr_t)context->arguments;
	uint32_t bytes = context->length < 8 ? 0 : arguments[0];

	while (context->length >= 8 && arguments[1])
		;
	for (uint32_t i = 0; i < bytes && i < sizeof data; i += 64)
		data[i]++;
	orbit_return((int64_t)event->value);
	if (context->handles)
		orbit_set(context->handle[0], (int64_t)event->value);
}
