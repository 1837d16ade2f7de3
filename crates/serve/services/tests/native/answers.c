/* Answers each datagram of the descriptor that it was given with the same in capital letters. Its
 * argument, if there is one, is the place that it uses instead of the first. */
#include "orbit_service.h"

/* What is not answered yet, since that was above the rate. */
static char data[512];
static struct orbit_peer peer;
static int64_t bytes;

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	uint64_t place = context->length ? *(const char *)context->arguments - '0' : 0;
	int64_t sent = 0;

	(void)event;
	for (; sent >= 0; bytes = 0) {
		if (!bytes) {
			bytes = orbit_recv(place, data, sizeof data, &peer);
			for (int64_t at = 0; at < bytes; at++)
				if (data[at] >= 'a' && data[at] <= 'z')
					data[at] -= 'a' - 'A';
		}
		if (bytes <= 0) {
			bytes = 0;
			return;
		}
		sent = orbit_send(place, data, bytes, &peer);
		if (sent == -ORBIT_EDQUOT)
			return;
	}
}
