// Counts its runs in the niceness that it sets: from 1 to 10 and again.
#include "orbit_service.h"
static int runs;
void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	(void)event;
	runs = runs % 10 + 1;
	if (context->handles)
		orbit_set(context->handle[0], runs);
}
