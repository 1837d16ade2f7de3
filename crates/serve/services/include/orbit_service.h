/* What a service is written against. The same source builds as a native service (in the sandbox
 * region) and as a wasm module (on an agent):
 *
 *   cc -O2 -fPIC -shared -nostdlib -ffreestanding -fno-stack-protector -I. \
 *      -Wl,--hash-style=sysv -Wl,--build-id=none -Wl,-T,orbit_service.ld -o s.so s.c
 *   clang --target=wasm32 -O2 -nostdlib -ffreestanding -I. \
 *      -Wl,--no-entry -Wl,--allow-undefined -o s.wasm s.c
 *
 * A service has no libc, no thread-local storage and no constructors. Its handler runs to its end
 * within its budget, or is aborted; its own data then stays as the abort found it. No call blocks
 * but orbit_sleep; a handler that calls orbit_may_wait first may make blocking calls of its own
 * after it.
 */
#ifndef ORBIT_SERVICE_H
#define ORBIT_SERVICE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__wasm__)
#define ORBIT_IMPORT(name) __attribute__((import_module("orbit"), import_name(#name)))
#define ORBIT_EXPORT(name) __attribute__((export_name(#name)))
#else
#define ORBIT_IMPORT(name)
#define ORBIT_EXPORT(name) __attribute__((visibility("default")))
#endif

#define ORBIT_HANDLES 32

/* Kinds of events, and what their value is. */
#define ORBIT_TIMER 1
#define ORBIT_POSTED 2     /* the poster's */
#define ORBIT_PRESSURE 3   /* nanoseconds that tasks stalled since the last one */
#define ORBIT_READABLE 4   /* the place of the descriptor that was given or accepted */
#define ORBIT_TRACEPOINT 5 /* hits since the last one */
#define ORBIT_SERVICE 6    /* runs of another service since the last one */
#define ORBIT_QUESTION 7   /* the number of a question that waits for orbit_answer */

/* Errors, negated, as everywhere. */
#define ORBIT_EBADF 9   /* the number is no handle of this service */
#define ORBIT_EACCES 13 /* the handle lacks the right */
#define ORBIT_ERANGE 34 /* the guard refused the value */
#define ORBIT_ESRCH 3   /* the target is gone */
#define ORBIT_ENOENT 2  /* no such question */
#define ORBIT_EPERM 1   /* the thread that ran the handler may not do this */
#define ORBIT_EAGAIN 11 /* nothing to read or accept now, or no room to write */
#define ORBIT_EMFILE 24 /* as many connections as there are places */
#define ORBIT_EDQUOT 122 /* above the descriptor's rate: the handler is started again when it is not */

/* What the service was loaded with. */
struct orbit_context {
	uint64_t arguments; /* address of the arguments */
	uint32_t length;    /* their bytes */
	uint32_t handles;   /* the number of handles */
	uint64_t handle[ORBIT_HANDLES]; /* in the order of the grants */
};

struct orbit_event {
	uint32_t kind;
	uint32_t lost;   /* events of this kind that were dropped or merged since the last one handled */
	uint64_t due_ns; /* monotonic */
	uint64_t now_ns; /* when this run began */
	uint64_t value;  /* by kind, see above */
};

/* A share of a CPU and its controller: set target and period, leave the rest 0. */
struct orbit_control {
	uint64_t target_ns, period_ns;
	uint64_t began_ns, used_ns, budget_ns;
	int64_t integral_ns, error_ns;
};

/* A question: a system call of a guest of `orbit hijack`, whose rule says `ask service NAME`.
 * The guest waits. */
struct orbit_question {
	uint64_t call;        /* its number */
	uint64_t argument[6];
	uint64_t pid, tid, site;
	char path[128];       /* the first path among the arguments, cut; empty: it has none */
};

/* Answers. Errors are results, negated. */
#define ORBIT_PASS 0   /* the call is made */
#define ORBIT_RESULT 1 /* it is not, and has this result */

/* The service itself: called for each event. */
ORBIT_EXPORT(orbit_handler)
void orbit_handler(const struct orbit_context *context, const struct orbit_event *event);

/* Monotonic time, nanoseconds. */
ORBIT_IMPORT(now) uint64_t orbit_now(void);
/* Reads an attribute. 0 or a negative error. */
ORBIT_IMPORT(get) int64_t orbit_get(uint64_t handle, int64_t *value);
/* Asks for a value: the guard passes it, clamps it or refuses it. 0 or a negative error. */
ORBIT_IMPORT(set) int64_t orbit_set(uint64_t handle, int64_t value);
/* One step of a share's controller: 1 if the process is owed time in this period. */
ORBIT_IMPORT(control_step) int32_t orbit_control_step(struct orbit_control *control, uint64_t now_ns, uint64_t used_ns);
/* Reads the question of an ORBIT_QUESTION event: 0, or -ORBIT_ENOENT when it does not wait any
 * more. */
ORBIT_IMPORT(question) int64_t orbit_question(uint64_t number, struct orbit_question *question);
/* Answers it, in this run or a later one: 0, or -ORBIT_ENOENT when nobody waits for the answer. */
ORBIT_IMPORT(answer) int64_t orbit_answer(uint64_t number, uint32_t verdict, int64_t result);
#ifndef __wasm__
/* The run is about to wait. In a thread of the service's own: 0. In an upcall or an agent it does
 * not return: the run begins again in that thread, from the start of the handler. Time that it
 * waits is not charged. */
int64_t orbit_may_wait(void);
/* Waits, as orbit_may_wait allows. */
int64_t orbit_sleep(uint64_t ns);
/* What a program that calls the service gets (orbit_call of orbit_program.h). */
int64_t orbit_return(int64_t value);
/* The other end of a datagram: a struct sockaddr_in or sockaddr_in6 and its length; 0: none. */
struct orbit_peer {
	uint32_t length;
	uint8_t address[28];
};
/* Descriptors that its owner gave to a service with a thread, by their places, counted from 0. Each
 * call does what can be done without waiting and answers the number of bytes, or a negative error:
 * -EAGAIN; -EBADF for a place that has none, or outside of the thread; -EACCES without the right;
 * -EDQUOT above the rate. An ORBIT_READABLE event says that a place has something: again after a
 * run that has left some of it, as long as its calls succeed. */
int64_t orbit_read(uint64_t place, void *data, uint64_t bytes);        /* 0: the other end has closed */
int64_t orbit_write(uint64_t place, const void *data, uint64_t bytes); /* to its peer */
/* peer may be null */
int64_t orbit_recv(uint64_t place, void *data, uint64_t bytes, struct orbit_peer *peer);
int64_t orbit_send(uint64_t place, const void *data, uint64_t bytes, const struct orbit_peer *peer);
/* The place of a connection that waited at the listener in this one. */
int64_t orbit_accept(uint64_t place);
/* Takes the descriptor from the service; one that was given is closed by the host. */
int64_t orbit_close(uint64_t place);
/* Memory of the service's own heap; a null pointer when that is used up. */
void *orbit_alloc(uint64_t bytes);
void orbit_free(void *memory);
#endif

#ifdef __cplusplus
}
#endif
#endif
