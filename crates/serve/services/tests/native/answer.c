// Answers twice the value, plus the number of the run; misbehaves for some values.
#include "orbit_service.h"
static int64_t runs;
void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	(void)context;
	runs++;
	if (event->value == 1000000)
		for (volatile long i = 0;; i++)
			;
	if (event->value == 1000001)
		*(volatile int *)8 = 1;
	if (event->value == 1000002)
		orbit_may_wait();
	orbit_return(2 * (int64_t)event->value + runs);
}
