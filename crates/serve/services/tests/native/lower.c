/* Asks for niceness -5 with each tick; a posted event sets its value. */
#include "orbit_service.h"

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	if (event->kind == ORBIT_TIMER)
		orbit_set(context->handle[0], -5);
	if (event->kind == ORBIT_POSTED)
		orbit_set(context->handle[0], (int64_t)event->value);
}
