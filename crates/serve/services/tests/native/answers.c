/* Answers each datagram of the descriptor that it was given with the same in capital letters. Its
 * argument, if there is one, is the place that it uses instead of the first. */
#include "orbit_service.h"

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	static char data[512];
	struct orbit_peer peer;
	uint64_t place = context->length ? *(const char *)context->arguments - '0' : 0;
	int64_t bytes;

	(void)event;
	while ((bytes = orbit_receive(place, data, sizeof data, &peer)) > 0) {
		for (int64_t at = 0; at < bytes; at++)
			if (data[at] >= 'a' && data[at] <= 'z')
				data[at] -= 'a' - 'A';
		bytes = orbit_send(place, data, bytes, &peer);
		if (bytes < 0)
			break;
	}
	orbit_return(bytes);
}
