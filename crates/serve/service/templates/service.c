/* NAME: makes a process nicer, one step a tick, as long as its grant allows it. Change this.
 *
 * Handles come in the order of the --grant options. */
#include "orbit_service.h"

enum { NICE };

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	int64_t nice;

	if (event->kind != ORBIT_TIMER || context->handles <= NICE)
		return;
	if (orbit_get(context->handle[NICE], &nice))
		return; /* the process is gone */
	orbit_set(context->handle[NICE], nice + 1);
}
