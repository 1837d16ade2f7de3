// The manager of descriptors: when a program has four fifths of its descriptors in use, connections
// may be idle for a short time only; else for as long as the grant allows.
//
// Handles, all of one program: descriptors:open, descriptors:limit, descriptors:idle to set. Its
// guard clamps: the range of the grant is the short time and the long one. Event: a tick.
#include "orbit_service.h"

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	int64_t open, limit;

	(void)event;
	if (context->handles < 3 || orbit_get(context->handle[0], &open) || orbit_get(context->handle[1], &limit))
		return; // the program is gone
	// All of what is wanted, each time.
	orbit_set(context->handle[2], open >= limit - limit / 5 ? 0 : INT64_MAX);
}
