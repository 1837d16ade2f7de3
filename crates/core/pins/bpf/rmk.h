// What the programs in this folder and src/core/layout.rs agree on. A change here is a change
// there; both sides check the sizes.
#ifndef RMK_H
#define RMK_H
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u64 u64;
typedef __u32 u32;

#define SUBS 63           // subscriptions at a time: one bit each in a 64-bit mask
#define OWN (1ull << 63)  // the bit that marks a process of the core itself
#define MAX_CPUS 256
#define WATCHED 9         // CPUs that one CPU watches: itself and the next eight
#define KEYS 512          // width of a subscription's key set

enum kind {
	SWITCH = 1, STARTED = 2, EXECUTED = 3, ENDED = 4, STALLED = 5, TICK = 6,
	SIG_RAISED = 7, SIG_DELIVERED = 8, INTERRUPT = 9, SOFT_INTERRUPT = 10, PAGE_FAULT = 11, EXCEPTION = 12,
	CALL_BEGUN = 13, CALL_COMPLETED = 14, KINDS = 32
};
enum class { FILE_CALL = 1, NET_CALL = 2, IPC_CALL = 4, BY_DESCRIPTOR = 8 };

// One subscription. User space writes all of it but `sent` and `lost`, before its bit appears in
// `table.active`.
struct sub {
	u64 keys[KEYS / 64];       // numbers (system call, signal, interrupt) that pass; all ones: every number
	u64 cpus[MAX_CPUS / 64];   // CPUs that pass
	u64 classes;               // classes of system calls that pass; 0: any
	u64 min_ns;                // shortest duration that passes
	u64 every;                 // send every n-th that passes, on each CPU; 0: count only
	u64 exact;                 // STALLED: the count of ticks that raises it
	u64 quota;                 // events sent and not yet taken, at most
	u64 taken;                 // events that the subscriber took
	u64 sent;                  // events put into the ring
	u64 lost;                  // events that passed and found no room
	u64 unlisted;              // processes made by listed ones that found no room in `pids`
	u64 spare[3];
};
_Static_assert(sizeof(struct sub) == 192, "layout.rs");

// What passed a subscription's filter, on one CPU. Row cpu * 64 + subscription. Written by that CPU
// only.
struct seen { u64 passed, due; };

struct table {
	u64 active[KINDS];   // for each kind, its subscribers
	u64 everyone;        // subscriptions that are not bound to a set of processes
	u64 asleep;          // 1: the reader waits for a wake-up
	u64 spare[30];
};
_Static_assert(sizeof(struct table) == 512, "layout.rs");

// What is known of one CPU. Written by that CPU only.
struct cpu { u64 last_switch, switches, last_tick, ticks, longest, current, irq_start, soft_start; };
_Static_assert(sizeof(struct cpu) == 64, "layout.rs");

struct event { u64 time, subs; u32 kind, pid, tid, cpu; u64 values[4]; };
_Static_assert(sizeof(struct event) == 64, "layout.rs");

// Subscriptions that a process is listed for, and those of them that its children inherit. Gone
// with the process: while a subscription is bound to processes, process_fork and process_exit are
// attached.
struct listed { u64 mask, follow; };

struct thread_call { u64 time, nr, arg0, classes; };
struct watch { u64 last_switch, missed; };

#define MAP(name, kind, entries, k, v, flags) \
	struct { __uint(type, kind); __uint(max_entries, entries); __type(key, k); __type(value, v); \
		 __uint(map_flags, flags); } name SEC(".maps")

MAP(subs, BPF_MAP_TYPE_ARRAY, 64, u32, struct sub, BPF_F_MMAPABLE);
MAP(seen, BPF_MAP_TYPE_ARRAY, 64 * MAX_CPUS, u32, struct seen, BPF_F_MMAPABLE);
MAP(tables, BPF_MAP_TYPE_ARRAY, 1, u32, struct table, BPF_F_MMAPABLE);
MAP(cpus, BPF_MAP_TYPE_ARRAY, MAX_CPUS, u32, struct cpu, BPF_F_MMAPABLE);
MAP(pids, BPF_MAP_TYPE_HASH, 16384, u32, struct listed, 0);
MAP(classes, BPF_MAP_TYPE_ARRAY, KEYS, u32, u32, 0);
MAP(calls, BPF_MAP_TYPE_LRU_HASH, 32768, u32, struct thread_call, 0);
MAP(watches, BPF_MAP_TYPE_ARRAY, MAX_CPUS * WATCHED, u32, struct watch, 0);
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 16 << 20); } ring SEC(".maps");

const volatile u32 ncpu = 1;

// The few kernel types that are read; offsets come from the running kernel's BTF.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
typedef struct { int counter; } atomic_t;
struct signal_struct { atomic_t live; };
struct inode { unsigned short i_mode; };
struct sock_common { unsigned short skc_family; };
struct sock { struct sock_common __sk_common; };
struct socket { struct sock *sk; };
struct file { struct inode *f_inode; void *private_data; };
struct fdtable { unsigned int max_fds; struct file **fd; };
struct files_struct { struct fdtable *fdt; };
struct thread_info { u32 status; };
struct task_struct { struct thread_info thread_info; int pid, tgid, exit_code;
	struct signal_struct *signal; struct files_struct *files; };
struct kernel_siginfo { int si_signo, si_errno, si_code; };
#if defined(__TARGET_ARCH_arm64)
struct pt_regs { u64 regs[31]; u64 pc; int syscallno; };
#define REG_CALL(r) ((r)->syscallno)
#define REG_IP(r) ((r)->pc)
#define REG_ARG(r, n) ((r)->regs[n])
#define COMPAT(t) 0
#else
struct pt_regs { unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip; };
#define REG_IP(r) ((r)->ip)
#define REG_CALL(r) ((r)->orig_ax)
#define REG_ARG(r, n) ((n) == 0 ? (r)->di : (n) == 1 ? (r)->si : (r)->dx)
#define COMPAT(t) ((t)->thread_info.status & 2)  // TS_COMPAT: a 32-bit call, whose numbers are others
#endif
#pragma clang attribute pop

static __always_inline struct table *table(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&tables, &zero);
}

static __always_inline struct cpu *this_cpu(void)
{
	u32 n = bpf_get_smp_processor_id();
	return bpf_map_lookup_elem(&cpus, &n);
}

// Subscriptions that want events of process `tgid`. The core's own processes are seen only by
// subscriptions that list them.
static __always_inline u64 wanted_by(struct table *t, u32 tgid, u64 *own)
{
	struct listed *l = bpf_map_lookup_elem(&pids, &tgid);
	if (!l)
		return t->everyone;
	if (l->mask & OWN) {
		*own = 1;
		return l->mask & ~OWN;
	}
	return l->mask | t->everyone;
}

// A candidate event, and the subscriptions it may go to.
struct offer { u64 mask, duration, exact; u32 key, classes, cpu, quiet; };

static __always_inline u32 lowest(u64 x)
{
	u32 n = 0;
	x &= -x;
	if (x & 0xffffffff00000000ull) n += 32;
	if (x & 0xffff0000ffff0000ull) n += 16;
	if (x & 0xff00ff00ff00ff00ull) n += 8;
	if (x & 0xf0f0f0f0f0f0f0f0ull) n += 4;
	if (x & 0xccccccccccccccccull) n += 2;
	if (x & 0xaaaaaaaaaaaaaaaaull) n += 1;
	return n;
}

static __always_inline int key_passes(struct sub *s, u32 key)
{
	return key < KEYS ? (s->keys[(key / 64) & 7] >> (key & 63)) & 1 : s->keys[7] >> 63;
}

// Runs the filters of the offered subscriptions; gives those that the event is to be sent to.
static __noinline u64 choose(struct offer *o)
{
	u64 out = 0, left = o->mask & ~OWN;
	for (int i = 0; i < SUBS; i++) {
		if (!left)
			break;
		u32 n = lowest(left) & 63;
		left &= left - 1;
		struct sub *s = bpf_map_lookup_elem(&subs, &n);
		if (!s)
			break;
		u32 cpu = o->cpu & (MAX_CPUS - 1);
		if (!key_passes(s, o->key) || !((s->cpus[cpu / 64] >> (cpu & 63)) & 1))
			continue;
		if (s->classes && !(s->classes & o->classes))
			continue;
		if (o->duration < s->min_ns || (o->exact && o->exact != s->exact))
			continue;
		u32 row = cpu * 64 + n;
		struct seen *c = bpf_map_lookup_elem(&seen, &row);
		if (!c)
			break;
		u64 count = __sync_fetch_and_add(&c->passed, 1) + 1;
		if (!s->every || (s->every > 1 && count % s->every))
			continue;
		__sync_fetch_and_add(&c->due, 1);
		if (s->sent - s->taken >= s->quota) {
			__sync_fetch_and_add(&s->lost, 1);
			continue;
		}
		out |= 1ull << n;
	}
	return out;
}

// Adds to what the subscriptions in `mask` were sent and lost.
static __noinline int charge(u64 mask, long sent, long lost)
{
	for (int i = 0; i < SUBS; i++) {
		if (!mask)
			break;
		u32 n = lowest(mask) & 63;
		mask &= mask - 1;
		struct sub *s = bpf_map_lookup_elem(&subs, &n);
		if (!s)
			break;
		__sync_fetch_and_add(&s->sent, sent);
		__sync_fetch_and_add(&s->lost, lost);
	}
	return 0;
}

// Counts a process that the subscriptions in `mask` were to follow, and for which there was no
// room.
static __noinline int not_listed(u64 mask)
{
	for (int i = 0; i < SUBS; i++) {
		if (!mask)
			break;
		u32 n = lowest(mask) & 63;
		mask &= mask - 1;
		struct sub *s = bpf_map_lookup_elem(&subs, &n);
		if (!s)
			break;
		__sync_fetch_and_add(&s->unlisted, 1);
	}
	return 0;
}

// Filters, counts and sends. `e` is complete but for `subs`.
static __always_inline void raise(struct table *t, struct offer *o, struct event *e)
{
	u64 to = choose(o);
	if (!to)
		return;
	e->subs = to;
	// Charged first: a reader that takes the event at once must find it counted.
	charge(to, 1, 0);
	u64 flags = BPF_RB_NO_WAKEUP;
	if (!o->quiet && t->asleep) {
		t->asleep = 0;
		flags = BPF_RB_FORCE_WAKEUP;
	}
	if (bpf_ringbuf_output(&ring, e, sizeof *e, flags))
		charge(to, -1, 1);
}

static __always_inline void fill(struct event *e, u32 kind, u32 pid, u32 tid, u32 cpu, u64 time)
{
	e->time = time;
	e->subs = 0;
	e->kind = kind;
	e->pid = pid;
	e->tid = tid;
	e->cpu = cpu;
}
#endif
