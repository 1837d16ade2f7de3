/* The rival of a service that answers datagrams: an ordinary process that does the same after
 * epoll_wait. Says its port. */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

int main(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof to;
	int file = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), events = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};
	char data[512];

	if (bind(file, (void *)&to, length) || getsockname(file, (void *)&to, &length) ||
	    epoll_ctl(events, EPOLL_CTL_ADD, file, &event))
		return 1;
	printf("%d\n", ntohs(to.sin_port));
	fflush(stdout);
	while (epoll_wait(events, &event, 1, -1) > 0) {
		struct sockaddr_in peer;
		ssize_t bytes;

		for (length = sizeof peer;
		     (bytes = recvfrom(file, data, sizeof data, 0, (void *)&peer, &length)) > 0; length = sizeof peer) {
			for (ssize_t at = 0; at < bytes; at++)
				data[at] = toupper((unsigned char)data[at]);
			sendto(file, data, bytes, 0, (void *)&peer, length);
		}
	}
	return 0;
}
