// The CPU service manager of the paper: keeps shares of a CPU for processes, against whatever else
// wants it.
//
// Arguments: for each process its target and period, nanoseconds. Handles: for each process one to
// read its CPU time and one to set its priority; then priorities of threads that may disturb them.
// Give the processes in ascending order of their periods' urgency: among processes that are owed
// time, the last one runs first (rate-monotonic).
#include "orbit_service.h"

#define PROCESSES 8
#define LOWEST 70 // priority of the first process that is owed time

struct share {
	uint64_t target_ns, period_ns;
};

static struct orbit_control control[PROCESSES];

void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	const struct share *share = (const struct share *)(uintptr_t)context->arguments;
	uint32_t n = context->length / sizeof *share;
	int64_t wanted[PROCESSES];

	if (n > PROCESSES || context->handles < 2 * n)
		return;
	for (uint32_t i = 0; i < n; i++) {
		int64_t used = 0;
		wanted[i] = 0;
		control[i].target_ns = share[i].target_ns;
		control[i].period_ns = share[i].period_ns;
		if (orbit_get(context->handle[2 * i], &used))
			continue; // the process is gone
		if (orbit_control_step(&control[i], event->now_ns, (uint64_t)used))
			wanted[i] = LOWEST + i;
	}
	// All that is wanted is set each time, whatever was set before: a remembered value would outlive a
	// run that was aborted between deciding and setting. Who is satisfied gets what is left, as an
	// ordinary thread: real-time threads together are held to 95 % of a CPU.
	for (uint32_t i = 2 * n; i < context->handles; i++)
		orbit_set(context->handle[i], 0);
	for (uint32_t i = 0; i < n; i++)
		orbit_set(context->handle[2 * i + 1], wanted[i]);
}
