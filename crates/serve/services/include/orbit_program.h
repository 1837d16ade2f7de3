/* For programs that let services set something of their own: how large a cache may be, how long a
 * connection may be idle.
 *
 *   struct orbit_program program;
 *   if (!orbit_program_open(&program, NULL)) {                             // the host's socket; NULL: the usual one
 *       struct orbit_published *cache = orbit_publish(&program, ORBIT_MEMORY_CACHE, 1 << 20, 64 << 20, 64 << 20);
 *       int64_t bytes;
 *       while (cache && orbit_has_host(&program))                          // in a thread of its own
 *           if (orbit_wait(&program, cache, 1000, &bytes))
 *               orbit_report(cache, shrink_to(bytes));                      // what it has then
 *   }
 *
 * Functions answer 0 or a negative errno, unless said. Only Linux on x86-64. Any thread may report;
 * one waits.
 */
#ifndef ORBIT_PROGRAM_H
#define ORBIT_PROGRAM_H

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* What programs can publish. */
#define ORBIT_MEMORY_CACHE 11     /* memory:cache, bytes */
#define ORBIT_DESCRIPTORS_IDLE 22 /* descriptors:idle, milliseconds */

#define ORBIT_PUBLISHED 64
#define ORBIT_CONTROL_LENGTH 0x10000

/* One published attribute, in memory that host, services and programs share. */
struct orbit_published {
	int32_t process;
	uint32_t class_;
	int64_t min, max, present, wanted;
	uint32_t changes, applied;
	int64_t reserved;
};

struct orbit_program {
	struct orbit_published *table;
	int32_t host;
	char socket[100];
	uint32_t seen[ORBIT_PUBLISHED];
};

/* Sends one command (a line of JSON) to the host and reads its answer. */
static inline int orbit_ask(const char *path, const char *line, char *answer, size_t length)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t had = 0;
	int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), error = 0;
	if (file < 0)
		return -errno;
	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	if (connect(file, (struct sockaddr *)&address, sizeof address) ||
	    send(file, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line))
		error = -errno;
	while (!error && had + 1 < length) {
		ssize_t n = read(file, answer + had, length - 1 - had);
		if (n < 0 && errno != EINTR)
			error = -errno;
		if (n <= 0 && errno != EINTR)
			break;
		had += n > 0 ? (size_t)n : 0;
	}
	answer[had] = 0;
	close(file);
	return error;
}

/* Connects to the host that listens at this socket, of the same user. NULL: the host that
 * ORBIT_SERVICES in the environment names, else the usual socket. */
static inline int orbit_program_open(struct orbit_program *program, const char *socket_path)
{
	const char *folder = getenv("XDG_RUNTIME_DIR");
	char answer[256], path[64], *at;
	int files[3], error, file;
	void *memory;

	memset(program, 0, sizeof *program);
	if (socket_path)
		snprintf(program->socket, sizeof program->socket, "%s", socket_path);
	else
		snprintf(program->socket, sizeof program->socket, "%s/orbit-services.sock", folder ? folder : "/run");
	at = socket_path ? NULL : getenv("ORBIT_SERVICES");
	if (!at) {
		error = orbit_ask(program->socket, "{\"command\":\"invite\"}\n", answer, sizeof answer);
		if (error)
			return error;
		at = strstr(answer, ":\"");
		at = at ? at + 2 : NULL;
	}
	if (!at || sscanf(at, "%d:%d:%d:%d", &program->host, &files[0], &files[1], &files[2]) != 4)
		return -EPROTO;
	snprintf(path, sizeof path, "/proc/%d/fd/%d", program->host, files[2]);
	file = open(path, O_RDWR | O_CLOEXEC);
	if (file < 0)
		return -errno;
	memory = mmap(NULL, ORBIT_CONTROL_LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	error = memory == MAP_FAILED ? -errno : 0;
	close(file);
	if (!error)
		program->table = (struct orbit_published *)memory;
	return error;
}

/* Whether the host is there. 1 or 0. */
static inline int orbit_has_host(const struct orbit_program *program)
{
	return program->table && (!kill(program->host, 0) || errno == EPERM);
}

/* Publishes an attribute of this process, or once more. A null pointer when all places are
 * taken. */
static inline struct orbit_published *orbit_publish(struct orbit_program *program, uint32_t class_, int64_t min,
						    int64_t max, int64_t present)
{
	int32_t me = getpid();
	struct orbit_published *found = NULL;

	for (int i = 0; !found && i < ORBIT_PUBLISHED; i++) {
		struct orbit_published *place = &program->table[i];
		if (__atomic_load_n(&place->process, __ATOMIC_ACQUIRE) == me && place->class_ == class_)
			found = place;
	}
	for (int i = 0; !found && i < ORBIT_PUBLISHED; i++) {
		struct orbit_published *place = &program->table[i];
		int32_t holder = __atomic_load_n(&place->process, __ATOMIC_ACQUIRE);
		if (holder && (!kill(holder, 0) || errno != ESRCH))
			continue;
		if (__atomic_compare_exchange_n(&place->process, &holder, me, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			found = place;
	}
	if (!found)
		return NULL;
	found->min = min;
	found->max = max;
	found->wanted = present;
	__atomic_store_n(&found->present, present, __ATOMIC_RELEASE);
	found->applied = program->seen[found - program->table] = __atomic_load_n(&found->changes, __ATOMIC_ACQUIRE);
	__atomic_store_n(&found->class_, class_, __ATOMIC_RELEASE);
	return found;
}

/* Waits for a service to ask for a value, `ms` milliseconds at most. 1 with the value, within
 * the range; 0 without. */
static inline int orbit_wait(struct orbit_program *program, struct orbit_published *place, int ms, int64_t *value)
{
	uint32_t *seen = &program->seen[place - program->table];
	struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
	uint32_t changes = __atomic_load_n(&place->changes, __ATOMIC_ACQUIRE);

	if (changes == *seen) {
		syscall(SYS_futex, &place->changes, FUTEX_WAIT, *seen, &time, NULL, 0);
		changes = __atomic_load_n(&place->changes, __ATOMIC_ACQUIRE);
	}
	if (changes == *seen)
		return 0;
	*seen = changes;
	*value = __atomic_load_n(&place->wanted, __ATOMIC_ACQUIRE);
	return 1;
}

/* Says what the program has now. */
static inline void orbit_report(struct orbit_published *place, int64_t present)
{
	__atomic_store_n(&place->present, present, __ATOMIC_RELEASE);
	__atomic_store_n(&place->applied, __atomic_load_n(&place->changes, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

/* Withdraws it. */
static inline void orbit_withdraw(struct orbit_published *place)
{
	__atomic_store_n(&place->class_, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&place->process, 0, __ATOMIC_RELEASE);
}

/* Posts an event to a service, by the number that `orbit service ls` shows. -ENOENT when there
 * is none. */
static inline int orbit_post(struct orbit_program *program, const char *service, uint64_t value)
{
	char line[128], answer[256];
	int error;

	if (strlen(service) > 20 || strpbrk(service, "\"\\"))
		return -EINVAL;
	snprintf(line, sizeof line, "{\"command\":\"post\",\"id\":\"%s\",\"value\":%llu}\n", service,
		 (unsigned long long)value);
	error = orbit_ask(program->socket, line, answer, sizeof answer);
	return error ? error : strstr(answer, "\"done\"") ? 0 : -ENOENT;
}

/* A native service that this process, a member of the region, calls itself. */
struct orbit_callee {
	uint64_t slot, generation;
	int64_t (*enter)(uint64_t slot, uint64_t generation, uint64_t value, int64_t *answer);
};

#define ORBIT_REGION ((uintptr_t)0x7e5000000000)
#define ORBIT_REGION_CALL 64
#define ORBIT_REGION_MAGIC 0x6f72626974730004ULL

/* Finds a service by the number that `orbit service ls` shows (n2.1). -EINVAL for another number,
 * -EPERM in a process that is no member (orbit service exec or join makes one). */
static inline int orbit_find(struct orbit_callee *callee, const char *service)
{
	unsigned long long slot, generation;

	if (sscanf(service, "n%llu.%llu", &slot, &generation) != 2)
		return -EINVAL;
	if (msync((void *)ORBIT_REGION, 4096, MS_ASYNC) || *(const uint64_t *)ORBIT_REGION != ORBIT_REGION_MAGIC)
		return -EPERM;
	callee->slot = slot;
	callee->generation = generation;
	memcpy(&callee->enter, (const void *)(ORBIT_REGION + ORBIT_REGION_CALL), sizeof callee->enter);
	return 0;
}

/* Calls its handler with this value and waits for its end: in this thread if it is pure, else in
 * its own. 0 with what it answers; -ENOENT: it is gone; -EAGAIN: too many events wait; -EDQUOT: its
 * CPU time is used up; -EOPNOTSUPP: post its events; -ECANCELED: the run was aborted; -EINPROGRESS:
 * it waits, in a thread. Only while the process is a member. */
static inline int64_t orbit_call(const struct orbit_callee *callee, uint64_t value, int64_t *answer)
{
	return callee->enter(callee->slot, callee->generation, value, answer);
}

#endif
