// Finds the thread that is current at a tick, and starts an upcall there: a signal to the thread
// that the tick interrupted, if it is a member's, was in user mode (a signal would end its system
// call with EINTR), has the signal open and not yet waiting, and still has the region's handlers.
// All other ticks are counted, and left to the agent.
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u32 u32;
typedef __u64 u64;

char _license[] SEC("license") = "GPL";


typedef struct {
	unsigned long sig[1];
} __attribute__((preserve_access_index)) sigset_t;

struct sigpending {
	sigset_t signal;
} __attribute__((preserve_access_index));

struct sigaction {
	void *sa_handler;
} __attribute__((preserve_access_index));

struct k_sigaction {
	struct sigaction sa;
} __attribute__((preserve_access_index));

struct sighand_struct {
	struct k_sigaction action[64];
} __attribute__((preserve_access_index));

struct atomic {
	int counter;
};

struct seccomp {
	int mode;
	struct atomic filter_count;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid;
	int tgid;
	struct seccomp seccomp;
	sigset_t blocked;
	struct sigpending pending;
	struct sighand_struct *sighand;
} __attribute__((preserve_access_index));

// Processes that are members, by their number.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u32);
} members SEC(".maps");

// What became of ticks; ticks.rs has the same order.
enum { SENT, NO_MEMBER, IN_KERNEL, BLOCKED, FAILED, OUTCOMES };
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OUTCOMES);
	__type(key, u32);
	__type(value, u64);
} outcomes SEC(".maps");

const volatile u32 upcall_signal = 60;
const volatile u32 budget_signal = 61;
// Where the region's code is.
const volatile u64 code, code_len;
// Filters of the host: those of a container, which its members have as well.
const volatile int own_filters;
// The host's pid namespace; 0: the first one, whose numbers need no translation.
const volatile u64 ns_dev, ns_ino;

// The current process as the host knows it; 0 if it is in another namespace.
static __always_inline u32 current_process(void)
{
	if (!ns_ino)
		return bpf_get_current_pid_tgid() >> 32;
	struct bpf_pidns_info ids = {};
	bpf_get_ns_current_pid_tgid(ns_dev, ns_ino, &ids, sizeof(ids));
	return ids.tgid;
}

static __always_inline int count(u32 outcome)
{
	u64 *n = bpf_map_lookup_elem(&outcomes, &outcome);
	if (n)
		*n += 1;
	return 0;
}

// Whether the handler of a signal is the region's. A program that was started as a member may
// install its own after that, as Go's runtime does for every signal: an upcall would kill it, and a
// budget's timer would abort nothing.
static __always_inline int is_ours(struct task_struct *task, u32 signal)
{
	struct sighand_struct *sighand = BPF_CORE_READ(task, sighand);
	void *at = (char *)&sighand->action[0].sa.sa_handler + (u64)(signal - 1) * bpf_core_type_size(struct k_sigaction);
	u64 handler = 0;

	return !bpf_probe_read_kernel(&handler, sizeof(handler), at) && handler - code < code_len;
}

SEC("perf_event")
int tick(struct bpf_perf_event_data *context)
{
	u32 process = current_process();
	if (!process || !bpf_map_lookup_elem(&members, &process))
		return count(NO_MEMBER);
	if ((context->regs.cs & 3) != 3)
		return count(IN_KERNEL);
	struct task_struct *task = (void *)bpf_get_current_task();
	u64 closed = BPF_CORE_READ(task, blocked.sig[0]) | BPF_CORE_READ(task, pending.signal.sig[0]);
	if (closed & (1ull << (upcall_signal - 1)))
		return count(BLOCKED);
	if (!is_ours(task, upcall_signal) || !is_ours(task, budget_signal))
		return count(BLOCKED);
	// A filter of its own may kill it for a call that an upcall makes.
	if (bpf_core_field_exists(task->seccomp.mode) && BPF_CORE_READ(task, seccomp.mode) &&
	    (!bpf_core_field_exists(task->seccomp.filter_count) ||
	     BPF_CORE_READ(task, seccomp.filter_count.counter) != own_filters))
		return count(BLOCKED);
	return count(bpf_send_signal_thread(upcall_signal) ? FAILED : SENT);
}

// A program that execs has neither the region nor the handler any more: an upcall would kill it.
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task)
{
	u32 process = current_process();
	bpf_map_delete_elem(&members, &process);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	// The exiting thread is the current one.
	u32 process = current_process();
	if (task->pid == task->tgid)
		bpf_map_delete_elem(&members, &process);
	return 0;
}
