/* Answers each request on the listener that it was given with a page, and closes the connection. */
#include "orbit_service.h"

#define LISTENER 0

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	static const char page[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
	char request[512];
	int64_t bytes;

	(void)context;
	if (event->kind != ORBIT_READABLE)
		return;
	if (event->value == LISTENER) {
		/* What it sends is an event of its own. */
		while (orbit_accept(LISTENER) >= 0)
			;
		return;
	}
	bytes = orbit_read(event->value, request, sizeof request);
	if (bytes == -ORBIT_EAGAIN)
		return;
	if (bytes > 0)
		orbit_write(event->value, page, sizeof page - 1);
	orbit_close(event->value);
}
