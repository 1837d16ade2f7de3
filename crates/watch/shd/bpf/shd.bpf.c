// The kernel half of system hang detection: counts each CPU's context switches and judges CPUs by
// them. Layout of `cpus`: src/table.rs.
//
// A CPU makes progress when it switches between tasks, or when an interrupt finds it in user mode.
// A pinned thread of user space is woken on every CPU once a tick, so a CPU that can schedule does
// switch. A judge counts its own ticks since the victim's last progress: a judge that was delayed
// itself has counted nothing, and accuses no CPU.
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

typedef __u64 u64;
typedef __u32 u32;

#define MAX_CPUS 512
#define NEIGHBOURS 8
#define WINDOW 64 // a power of two
#define NOBODY (~0u)

// What is known of one CPU. Written by that CPU only, but for: `accused` and what follows it, by
// the CPU that judges it; `watched` and `neighbours`, by user space before the programs are
// attached (and `watched` at CPU hotplug).
struct cpu {
	u64 progress;             // when it last made progress, ns
	u64 switches;             // context switches
	u64 last_tick, ticks;     // its timer's interrupts
	u64 last_count;           // its performance counter's last interrupt; 0: it has none
	u64 longest;              // longest time without progress since the last tick, ns
	u64 check;                // the check value, in ticks of a judge
	u64 watched;
	u64 window[WINDOW];       // `longest` of the last ticks
	u32 neighbours[NEIGHBOURS]; // CPUs that this one judges beside itself
	u64 accused;              // `progress` for which an alarm was raised
	u64 alarm_time, alarm_by, alarm_check, alarm_tick, alarm_count;
	u64 alarm;                // = accused, once the alarm's other fields are written
	u64 counted_at, counts;   // its counter's interrupts since this `progress`
	u64 spare[3];
};
_Static_assert(sizeof(struct cpu) == 704, "src/table.rs");

struct seen { u64 progress, missed; };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

// What a judge saw of the CPUs it judges: row judge * (NEIGHBOURS + 1) + place; the last place is
// the judge itself.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS * (NEIGHBOURS + 1));
	__type(key, u32);
	__type(value, struct seen);
} seen SEC(".maps");

// In ticks, but for tick_ns.
const volatile u64 tick_ns = 20000000, check_least = 8, check_most = 25, check_factor = 3;

static __always_inline struct cpu *of(u32 n)
{
	return bpf_map_lookup_elem(&cpus, &n);
}

static __always_inline void progressed(struct cpu *c, u64 now)
{
	u64 gap = now - c->progress;
	if (c->progress && gap > c->longest)
		c->longest = gap;
	c->progress = now;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switched)
{
	struct cpu *c = of(bpf_get_smp_processor_id());
	if (!c)
		return 0;
	c->switches++;
	progressed(c, bpf_ktime_get_ns());
	return 0;
}

// A CPU that goes or comes has other things to do than to switch.
SEC("tp_btf/cpuhp_enter")
int BPF_PROG(hotplug, unsigned int n)
{
	struct cpu *c = of(n);
	if (c)
		c->watched = 0;
	return 0;
}

static __always_inline void accuse(struct cpu *victim, u64 progress, u64 now, u32 by)
{
	u64 before = victim->accused;
	// One alarm a hang, by the first judge.
	if (before == progress || __sync_val_compare_and_swap(&victim->accused, before, progress) != before)
		return;
	victim->alarm_time = now;
	victim->alarm_by = by;
	victim->alarm_check = victim->check;
	victim->alarm_tick = victim->last_tick;
	victim->alarm_count = victim->last_count;
	__sync_lock_test_and_set(&victim->alarm, progress);
}

// CPU `me` has ticked once more: has `victim` made progress since the tick before?
static __always_inline void judge(u32 me, u32 place, u32 victim, u64 now)
{
	u32 row = me * (NEIGHBOURS + 1) + place;
	struct seen *s = bpf_map_lookup_elem(&seen, &row);
	struct cpu *c = of(victim);
	if (!s || !c || !c->watched)
		return;
	u64 progress = c->progress;
	if (s->progress != progress) {
		s->progress = progress;
		s->missed = 0;
	} else if (progress && ++s->missed >= c->check) {
		accuse(c, progress, now, me);
	}
}

static __always_inline int in_user_mode(struct bpf_perf_event_data *at)
{
#if defined(__TARGET_ARCH_arm64)
	return (at->regs.pstate & 15) == 0;
#else
	return (at->regs.cs & 3) == 3;
#endif
}

SEC("perf_event")
int tick(struct bpf_perf_event_data *at)
{
	u32 me = bpf_get_smp_processor_id();
	struct cpu *c = of(me);
	if (!c)
		return 0;
	u64 now = bpf_ktime_get_ns();
	if (in_user_mode(at))
		progressed(c, now);
	c->last_tick = now;
	c->window[c->ticks++ & (WINDOW - 1)] = c->longest;
	c->longest = 0;
	u64 most = 0;
	for (u32 i = 0; i < WINDOW; i++)
		if (c->window[i] > most)
			most = c->window[i];
	u64 check = most * check_factor / tick_ns + 1;
	if (check < check_least)
		check = check_least;
	if (check > check_most)
		check = check_most;
	c->check = check;
	judge(me, NEIGHBOURS, me, now);
	for (u32 i = 0; i < NEIGHBOURS; i++) {
		u32 victim = c->neighbours[i];
		if (victim == NOBODY)
			break;
		judge(me, i, victim, now);
	}
	return 0;
}

// The CPU has run for so many cycles. Comes as an NMI, so also with interrupts off: then the CPU
// can accuse itself. Time alone does not count: between the first and the fifth interrupt it has
// run, and no hypervisor delayed it.
#define COUNTS 4
SEC("perf_event")
int counted(struct bpf_perf_event_data *at)
{
	u32 me = bpf_get_smp_processor_id();
	struct cpu *c = of(me);
	if (!c)
		return 0;
	u64 now = bpf_ktime_get_ns(), progress = c->progress;
	c->last_count = now;
	if (c->counted_at != progress) {
		c->counted_at = progress;
		c->counts = 0;
		return 0;
	}
	if (c->watched && progress && !in_user_mode(at) && ++c->counts >= COUNTS && now - progress > c->check * tick_ns)
		accuse(c, progress, now, me);
	return 0;
}
