// The CPU service manager of the paper as a service in the kernel: monitor and controller here,
// priorities by the agent.
//
// Arguments: for each process its target and period, nanoseconds. Handles: the priority of each
// process, then those of threads that may disturb them, as in native/cpu.c: among processes that
// are owed time the last one runs first.
#include "../include/orbit_kernel.h"
#include <stdbool.h>

char _license[] SEC("license") = "GPL";

typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;

#define PROCESSES 8
#define THREADS 16
#define LOWEST 70

struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

// The controller of sandbox-lib/src/control.rs.
struct control {
	u64 began, used, budget;
	s64 integral, error;
};

struct thread {
	u64 used, since; // CPU time so far; when it began to run, 0: it does not
};

static struct control control[PROCESSES];
static struct thread thread[THREADS];

static __always_inline struct orbit_loaded *loaded(void)
{
	u32 first = 0;
	return bpf_map_lookup_elem(&orbit_loaded, &first);
}

// The number of a managed thread, THREADS for all others.
static __always_inline u32 number(struct orbit_loaded *service, int pid)
{
	for (u32 i = 0; i < THREADS && i < service->handles; i++)
		if (service->target[i] == pid)
			return i;
	return THREADS;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct orbit_loaded *service = loaded();
	u64 now = bpf_ktime_get_ns();
	if (!service)
		return 0;
	u32 a = number(service, prev->pid), b = number(service, next->pid);
	if (a < THREADS) {
		if (thread[a].since)
			thread[a].used += now - thread[a].since;
		thread[a].since = 0;
	}
	if (b < THREADS)
		thread[b].since = now;
	return 0;
}

// One step of a share's controller: 1 if the process is owed time in this period.
static __always_inline int step(struct control *c, u64 target, u64 period, u64 now, u64 used)
{
	s64 want = target, bound = want >> 2;
	if (!c->began) {
		c->began = now;
		c->used = used;
		c->budget = target + target / 50;
	}
	u64 passed = now - c->began;
	if (period && passed >= period) {
		s64 error = want - (s64)(used - c->used);
		if (error < -want)
			error = -want;
		c->integral += error;
		if (c->integral > bound)
			c->integral = bound;
		if (c->integral < -bound)
			c->integral = -bound;
		s64 next = want + (error >> 1) + (c->integral >> 2) + ((error - c->error) >> 3);
		s64 most = want + target / 5;
		c->error = error;
		if (next < want)
			next = want;
		if (next > most)
			next = most;
		c->budget = next + target / 50;
		c->began += passed / period * period;
		c->used = used;
	}
	return used - c->used < c->budget;
}

SEC("perf_event")
int tick(struct bpf_perf_event_data *context)
{
	struct orbit_loaded *service = loaded();
	u64 now = bpf_ktime_get_ns();
	if (!service)
		return 0;
	orbit_count(ORBIT_RUNS);
	u32 shares = service->length / 16;
	for (u32 i = 0; i < THREADS && i < service->handles; i++) {
		s64 wanted = 0;
		if (i < shares && i < PROCESSES) {
			u64 *share = (u64 *)&service->arguments[i * 16];
			u64 used = thread[i].used + (thread[i].since ? now - thread[i].since : 0);
			if (step(&control[i], share[0], share[1], now, used))
				wanted = LOWEST + i;
		}
		// All that is wanted, each time: a priority that was seen at the last switch is not the present
		// one, and a thread that was left at a wrong one would not run, so would not be seen again.
		orbit_ask(i, wanted);
	}
	return 0;
}
