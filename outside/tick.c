/* The service of the column `service exec`: an upcall that counts. */
#include <orbit_service.h>

static volatile uint64_t runs;

ORBIT_EXPORT("orbit_handler")
void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	(void)context;
	(void)event;
	runs += 1;
}
