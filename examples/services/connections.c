/* A server that keeps connections open and echoes what comes; a service closes idle ones when its
 * descriptors run short.
 *
 *   cc -O2 -I crates/serve/services/include -o connections \
 *         examples/services/connections.c -lpthread
 *   orbit service run & ./connections 7000 &
 *   clang --target=wasm32 -O2 -nostdlib -ffreestanding -Wl,--no-entry -Wl,--allow-undefined \
 *         -I crates/serve/services/include -o descriptors.wasm \
 *         crates/serve/services/native/descriptors.c
 *   orbit service load descriptors.wasm --owner $! --on tick=20ms \
 *         --grant "descriptors:open:get(pid=$!)" --grant "descriptors:limit:get(pid=$!)" \
 *         --grant "descriptors:idle:set(pid=$!,min=200,max=60000)"
 *
 * Port 0 takes a free one. It prints the port, then a line when it cannot accept a connection any
 * more. */
#include "orbit_program.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#define MOST 4096

static struct pollfd polled[MOST];
static long last_used[MOST]; // milliseconds
static _Atomic long idle_ms = 60000;

static long now_ms(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

// Takes what services ask for. The limit is applied by the server's own loop.
static void *listen_to_services(void *arg)
{
	struct orbit_program program;
	struct orbit_published *idle;
	int64_t value;

	(void)arg;
	for (;; sleep(1)) {
		if (orbit_program_open(&program, NULL))
			continue; // no host yet
		idle = orbit_publish(&program, ORBIT_DESCRIPTORS_IDLE, 10, 86400000, idle_ms);
		while (idle && orbit_has_host(&program))
			if (orbit_wait(&program, idle, 1000, &value)) {
				idle_ms = value;
				orbit_report(idle, value);
			}
		munmap(program.table, ORBIT_CONTROL_LENGTH);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(count > 1 ? atoi(arguments[1]) : 0)};
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), n = 1, is_full = 0;
	pthread_t thread;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024) ||
	    getsockname(listener, (struct sockaddr *)&address, &length) ||
	    pthread_create(&thread, NULL, listen_to_services, NULL)) {
		perror("connections");
		return 1;
	}
	printf("%d\n", ntohs(address.sin_port));
	fflush(stdout);
	polled[0] = (struct pollfd){listener, POLLIN, 0};
	for (;;) {
		poll(polled, n, 20);
		long now = now_ms(), limit = idle_ms;
		for (int i = n - 1; i > 0; i--) {
			char bytes[4096];
			ssize_t got = 1;
			if (polled[i].revents) {
				got = read(polled[i].fd, bytes, sizeof bytes);
				last_used[i] = now;
				if (got > 0)
					got = send(polled[i].fd, bytes, got, MSG_NOSIGNAL);
			}
			if (got <= 0 || now - last_used[i] > limit) {
				close(polled[i].fd);
				n--;
				polled[i] = polled[n];
				last_used[i] = last_used[n];
			}
		}
		if (polled[0].revents && n < MOST) {
			int client = accept(listener, NULL, NULL);
			if (client < 0) {
				if (!is_full) {
					printf("refused: %s\n", strerror(errno));
					fflush(stdout);
				}
				is_full = 1;
				usleep(1000); // the connection waits in the backlog
			} else {
				is_full = 0;
				polled[n] = (struct pollfd){client, POLLIN, 0};
				last_used[n++] = now;
			}
		}
	}
}
