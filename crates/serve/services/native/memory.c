// The memory service manager: a program's cache gives up a quarter when tasks stall for lack of
// memory, and gets a sixteenth back after ten ticks without a stall.
//
// Handle: memory:cache of the program, to set; the range of the grant is that of the cache. Events:
// --on psi=memory:150ms/2s, and a tick if the cache is to grow again.
#include "orbit_service.h"

#define CALM 10 // ticks

static int calm;

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	int64_t cache;

	if (context->handles < 1 || orbit_get(context->handle[0], &cache))
		return; // the program is gone
	if (event->kind == ORBIT_PRESSURE) {
		calm = 0;
		orbit_set(context->handle[0], cache - cache / 4);
	} else if (event->kind == ORBIT_TIMER && ++calm >= CALM) {
		calm = 0;
		orbit_set(context->handle[0], cache + cache / 16);
	}
}
