// The kernel half of sections by name: counts entries and exits of functions, and keeps for each
// thread what it needs to say how long an execution took. Layouts: src/table.rs.
//
// A probe's cookie (src/prober.rs):
//   bits 0 to 15   the slot: one function in one process
//        16 to 18  the exit that the control flow continues to from here
//        19        where the return address lies is counted from the frame pointer, not from the stack pointer
//        20        it goes to that exit only where a condition holds, that of bits 56 to 59, as jump instructions number them
//        21        there is such an exit: of an entry, which may be both
//        22        the kernel does not run this instruction itself
//        23        of an entry: return addresses are to be noted
//        24 to 55  how many bytes above that pointer the return address lies, signed
//        60        it is behind a call, at most a red zone above the return address, which is there yet if the function has returned
//        62        of an entry: not all exits are known, so that an activation is open says nothing, and each entry begins a new one
//        63        of an entry: the function jumps back to its first instruction, so passing the entry at an open activation's depth is none
// A return that is carried out here has the low bits of its address from bit 24 on.
// Only the outermost activation is measured: one entered while another is open, deeper on the
// stack, is nested. Activations that end by no exit (longjmp, an exception, a jump that may lead
// out) are noticed at the next entry from the same depth or above, and mostly at one from deeper:
// the open one's return address is no longer where it was.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

typedef __u64 u64;
typedef __u32 u32;

#define MAX_SLOTS 256
#define MAX_THREADS 8192
#define MAX_CALLERS 8192
#define EXITS 8

// The few fields of the kernel's own structures that are read.
struct sched_entity {
	u64 sum_exec_runtime;
} __attribute__((preserve_access_index));

struct thread_struct {
	unsigned long features;
} __attribute__((preserve_access_index));

struct task_struct {
	struct sched_entity se;
	unsigned long nvcsw, nivcsw;
	struct thread_struct thread;
} __attribute__((preserve_access_index));

// A thread with a shadow stack (ARCH_SHSTK_SHSTK).
#define SHADOW_STACK 1UL
// Bits of an address in a program, with four levels of page tables; with five, higher ones are
// seldom used.
#define ADDRESS_BITS 47
#define BREAKPOINT 0xcc
#define PAGE 4096

struct key { u32 tid, slot; };

// One thread in one function. Written by that thread only; a reader may see it half-written.
struct record {
	u64 entries;      // times entered, nested activations too
	u64 sp;           // stack pointer at the entry of the open activation; 0: none is open
	u64 run, time;    // CPU time of the thread and the clock at that entry, ns
	u64 switches;     // times it had been taken off a CPU
	u64 back;         // its return address
	u64 opened;       // `entries` by then, this one too; written last
	u64 exits[EXITS]; // times left, by exit
	u64 used[EXITS];  // CPU time of those executions, ns
};
_Static_assert(sizeof(struct record) == 184, "src/table.rs");

// Hits are added up atomically: a thread may lose its CPU half-way to another one that is in a
// probe too.
struct hits { u64 entries, exits, passes, stepped, lost; };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, struct key);
	__type(value, struct record);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_SLOTS);
	__type(key, u32);
	__type(value, struct hits);
} hits SEC(".maps");

// The watcher's pid namespace; 0: the first one, whose numbers need no translation.
const volatile u64 ns_dev, ns_ino;

struct caller { u64 back; u64 slot; };

// Where outermost activations were to return to.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLERS);
	__type(key, struct caller);
	__type(value, u32);
} callers SEC(".maps");

static __always_inline u32 thread(void)
{
	if (!ns_ino)
		return (u32)bpf_get_current_pid_tgid();
	struct bpf_pidns_info ids = {};
	bpf_get_ns_current_pid_tgid(ns_dev, ns_ino, &ids, sizeof(ids));
	return ids.pid;
}

#define EXIT(cookie) ((u32)((cookie) >> 16) & (EXITS - 1))
#define FRAME (1UL << 19)
#define CONDITIONAL (1UL << 20)
#define LEADS_OUT (1UL << 21)
#define STEPPED (1UL << 22)
#define NOTE_CALLERS (1UL << 23)
#define BEHIND (1UL << 60)
#define UNKNOWN_EXITS (1UL << 62)
#define LOOPS (1UL << 63)

// The stack pointer at the activation's entry, and at its return.
static __always_inline u64 stack_at_entry(struct pt_regs *at, u64 cookie)
{
	u64 frame = PT_REGS_FP(at), stack = PT_REGS_SP(at);
	// Both are read, lest the compiler reads at an address that it computes, which the kernel rejects.
	barrier_var(frame);
	barrier_var(stack);
	return (cookie & FRAME ? frame : stack) + (int)(cookie >> 24);
}

#define CF 1UL
#define PF 4UL
#define ZF 0x40UL
#define SF 0x80UL
#define OF 0x800UL

// Whether the control flow continues from this place to its exit.
static __always_inline bool leads_out(struct pt_regs *at, u64 cookie)
{
	if (!(cookie & CONDITIONAL))
		return true;
	u64 flags = at->eflags;
	u32 condition = cookie >> 56 & 15;
	bool less = !(flags & SF) != !(flags & OF), holds;
	switch (condition >> 1) {
	case 0: holds = flags & OF; break;
	case 1: holds = flags & CF; break;
	case 2: holds = flags & ZF; break;
	case 3: holds = flags & (CF | ZF); break;
	case 4: holds = flags & SF; break;
	case 5: holds = flags & PF; break;
	case 6: holds = less; break;
	default: holds = less || flags & ZF; break;
	}
	return holds != (condition & 1);
}

// The open activation is left, of which this is the stack pointer at its return; if it is.
static __always_inline void leave(struct record *r, u64 sp, u64 cookie)
{
	// Nested ones lie deeper; of one that lies further up the open one was left by no exit.
	if (!r->sp || sp < r->sp)
		return;
	u64 entry = r->sp;
	r->sp = 0;
	if (sp != entry)
		return;
	u64 back;
	// Whoever comes by after it ended by no exit has called others meanwhile.
	if (cookie & BEHIND && r->back && !bpf_probe_read_user(&back, sizeof(back), (void *)sp) && back != r->back)
		return;
	struct task_struct *me = bpf_get_current_task_btf();
	u64 used = me->se.sum_exec_runtime - r->run;
	// The kernel brings the CPU time up to date at ticks and switches; without a switch the clock says
	// it exactly.
	if (me->nvcsw + me->nivcsw == r->switches)
		used = bpf_ktime_get_ns() - r->time;
	r->exits[EXIT(cookie)]++;
	r->used[EXIT(cookie)] += used;
}

SEC("uprobe")
int entered(struct pt_regs *at)
{
	u64 cookie = bpf_get_attach_cookie(at);
	struct key key = { .tid = thread(), .slot = cookie & 0xffff };
	struct hits *h = bpf_map_lookup_elem(&hits, &key.slot);
	if (!h)
		return 0;
	__sync_fetch_and_add(&h->entries, 1);
	struct record *r = bpf_map_lookup_elem(&records, &key);
	if (!r) {
		struct record fresh = {};
		bpf_map_update_elem(&records, &key, &fresh, BPF_NOEXIST);
		r = bpf_map_lookup_elem(&records, &key);
		if (!r) {
			__sync_fetch_and_add(&h->lost, 1);
			return 0;
		}
	}
	u64 sp = stack_at_entry(at, cookie);
	if (cookie & LOOPS && r->sp == sp)
		return 0;
	r->entries++;
	u64 back;
	// What cannot be read is as it was: the stack is in memory, or is on its way.
	if (r->sp && sp < r->sp && !(cookie & UNKNOWN_EXITS)
	    && (bpf_probe_read_user(&back, sizeof(back), (void *)r->sp) || back == r->back))
		return 0;
	if (bpf_probe_read_user(&r->back, sizeof(r->back), (void *)sp))
		r->back = 0;
	if (cookie & NOTE_CALLERS) {
		struct caller caller = { .back = r->back, .slot = key.slot };
		u32 once = 1;
		// Where there is no room for more, those are not probed.
		if (!bpf_map_lookup_elem(&callers, &caller))
			bpf_map_update_elem(&callers, &caller, &once, BPF_NOEXIST);
	}
	struct task_struct *me = bpf_get_current_task_btf();
	r->run = me->se.sum_exec_runtime;
	r->switches = me->nvcsw + me->nivcsw;
	r->time = bpf_ktime_get_ns();
	r->sp = sp;
	barrier();
	r->opened = r->entries;
	if (cookie & LEADS_OUT && leads_out(at, cookie))
		leave(r, sp, cookie);
	return 0;
}

// An exit is reached, or is certain to be.
static __always_inline void out(u64 sp, u64 cookie)
{
	struct key key = { .tid = thread(), .slot = cookie & 0xffff };
	struct hits *h = bpf_map_lookup_elem(&hits, &key.slot);
	if (!h)
		return;
	__sync_fetch_and_add(&h->exits, 1);
	if (cookie & STEPPED)
		__sync_fetch_and_add(&h->stepped, 1);
	struct record *r = bpf_map_lookup_elem(&records, &key);
	if (r)
		leave(r, sp, cookie);
}

SEC("uprobe")
int left(struct pt_regs *at)
{
	u64 cookie = bpf_get_attach_cookie(at);
	u32 slot = cookie & 0xffff;
	if (leads_out(at, cookie)) {
		out(stack_at_entry(at, cookie), cookie);
		return 0;
	}
	struct hits *h = bpf_map_lookup_elem(&hits, &slot);
	if (h)
		__sync_fetch_and_add(&h->passes, 1);
	return 0;
}

// The same at a plain return instruction, which is then carried out here, as the processor would:
// so the kernel need not step it. Older kernels (6.18, not 7.3) reject this program, since it
// writes registers. Where the return may fault, it is left to the processor.
SEC("uprobe")
int returned(struct pt_regs *at)
{
	u64 ip = PT_REGS_IP(at), cookie = bpf_get_attach_cookie(at), own = cookie >> 24;
	// Its address lies where the rest is kept of others.
	cookie = (cookie & 0x7ffff) | STEPPED;
	if ((ip ^ own) & ((1UL << 40) - 1)) {
		// Another probe at the same instruction, of another guard, has carried it out a moment ago; or
		// the file is mapped elsewhere too, then the breakpoint is here.
		unsigned char byte = 0;
		bpf_probe_read_user(&byte, 1, (void *)ip);
		bool here = byte == BREAKPOINT && !((ip ^ own) & (PAGE - 1));
		out(PT_REGS_SP(at) - (here ? 0 : sizeof(u64)), cookie);
		return 0;
	}
	out(PT_REGS_SP(at), cookie);
	struct task_struct *me = bpf_get_current_task_btf();
	if (bpf_core_field_exists(me->thread.features) && me->thread.features & SHADOW_STACK)
		return 0;
	u64 to;
	if (bpf_probe_read_user(&to, sizeof(to), (void *)PT_REGS_SP(at)) || to >> ADDRESS_BITS)
		return 0;
	at->rsp += sizeof(to);
	at->rip = to;
	return 0;
}
