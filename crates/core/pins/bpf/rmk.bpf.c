// The kernel half of the pins: counts, filters and sends what modules subscribed to. One object;
// the core attaches the programs that the loaded pins need, and no others. Data in shared maps is
// described in rmk.h.
#include "rmk.h"

char _license[] SEC("license") = "GPL";

static __always_inline u64 id_of(struct task_struct *t)
{
	return (u64)t->tgid << 32 | (u32)t->pid;
}

// ---- P_SCHL: context switches and the life of processes

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int state)
{
	struct cpu *c = this_cpu();
	struct table *t = table();
	if (!c || !t)
		return 0;
	u64 now = bpf_ktime_get_ns(), ran = c->last_switch ? now - c->last_switch : 0;
	if (ran > c->longest)
		c->longest = ran;
	c->last_switch = now;
	c->switches++;
	c->current = id_of(next);
	u64 active = t->active[SWITCH];
	if (!active)
		return 0;
	u64 own = 0;
	u64 mask = active & (wanted_by(t, prev->tgid, &own) | wanted_by(t, next->tgid, &own));
	if (!mask)
		return 0;
	struct event e;
	struct offer o = { .mask = mask, .duration = ran, .key = preempt, .cpu = bpf_get_smp_processor_id(), .quiet = own };
	fill(&e, SWITCH, prev->tgid, prev->pid, o.cpu, now);
	e.values[0] = (u32)next->tgid;
	e.values[1] = (u32)next->pid;
	e.values[2] = state;
	e.values[3] = ran;
	raise(t, &o, &e);
	return 0;
}

static __always_inline void life(u32 kind, u32 pid, u32 tid, u64 a, u64 b)
{
	struct table *t = table();
	u64 own = 0;
	if (!t || !t->active[kind])
		return;
	struct offer o = { .mask = t->active[kind] & wanted_by(t, pid, &own),
			   .cpu = bpf_get_smp_processor_id(), .quiet = own };
	if (!o.mask)
		return;
	struct event e;
	fill(&e, kind, pid, tid, o.cpu, bpf_ktime_get_ns());
	e.values[0] = a;
	e.values[1] = b;
	e.values[2] = e.values[3] = 0;
	raise(t, &o, &e);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_fork, struct task_struct *parent, struct task_struct *child)
{
	u32 from = parent->tgid, to = child->tgid;
	if (from != to) {
		struct listed *l = bpf_map_lookup_elem(&pids, &from);
		u64 mask = l ? l->mask & l->follow : 0;
		struct listed inherited = { mask, mask };
		if (!mask)
			bpf_map_delete_elem(&pids, &to);  // of an earlier process of this number, whose end nobody heard
		else if (bpf_map_update_elem(&pids, &to, &inherited, BPF_ANY))
			not_listed(mask);
	}
	life(STARTED, to, child->pid, from, from == to);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(process_exec, struct task_struct *p, int old_pid)
{
	life(EXECUTED, p->tgid, p->pid, (u32)old_pid, 0);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exit, struct task_struct *p)
{
	u32 pid = p->tgid;
	u64 last = BPF_CORE_READ(p, signal, live.counter) == 0;
	life(ENDED, pid, p->pid, (u32)p->exit_code, last);
	if (last)
		bpf_map_delete_elem(&pids, &pid);
	return 0;
}

// ---- P_APIC: a CPU's counter overflowed

// One tick of CPU `me`: raises TICK, and STALLED for a watched CPU that made no switch during so
// many ticks of this one. The observer's own ticks are the measure, so an observer that was delayed
// itself accuses nobody.
SEC("perf_event")
int cpu_tick(void *ctx)
{
	struct cpu *c = this_cpu();
	struct table *t = table();
	if (!c || !t)
		return 0;
	u32 me = bpf_get_smp_processor_id();
	u64 now = bpf_ktime_get_ns();
	c->last_tick = now;
	c->ticks++;
	u64 id = bpf_get_current_pid_tgid();
	struct event e;
	struct offer o = { .mask = t->active[TICK], .cpu = me };
	if (o.mask) {
		fill(&e, TICK, id >> 32, id, me, now);
		e.values[0] = c->ticks;
		e.values[1] = c->last_switch ? now - c->last_switch : 0;
		e.values[2] = c->switches;
		e.values[3] = 0;
		raise(t, &o, &e);
	}
	u64 watching = t->active[STALLED];
	if (!watching)
		return 0;
	u32 cpus_here = ncpu;
	for (u32 i = 0; i < WATCHED; i++) {
		u32 victim = me + i;
		if (i >= cpus_here)
			break;
		if (victim >= cpus_here)
			victim -= cpus_here;
		u32 row = (me & (MAX_CPUS - 1)) * WATCHED + i;
		struct watch *w = bpf_map_lookup_elem(&watches, &row);
		struct cpu *v = bpf_map_lookup_elem(&cpus, &victim);
		if (!w || !v)
			break;
		u64 last = v->last_switch;
		if (!last)
			continue;
		if (w->last_switch != last) {
			w->last_switch = last;
			w->missed = 0;
			continue;
		}
		w->missed++;
		struct offer stalled = { .mask = watching, .exact = w->missed, .cpu = victim };
		fill(&e, STALLED, v->current >> 32, v->current, victim, now);
		e.values[0] = w->missed;
		e.values[1] = now - last;
		e.values[2] = now - v->last_tick;
		e.values[3] = me;
		raise(t, &stalled, &e);
	}
	return 0;
}

// ---- P_SIG and P_INTR

static __always_inline u64 fault_address(struct kernel_siginfo *info)
{
	u64 addr = 0;
	bpf_probe_read_kernel(&addr, sizeof addr, (char *)info + 16);  // si_addr, part of the user ABI
	return addr;
}

SEC("tp_btf/signal_generate")
int BPF_PROG(signal_generate, int sig, struct kernel_siginfo *info, struct task_struct *task, int group, int result)
{
	struct table *t = table();
	if (!t)
		return 0;
	int code = (u64)info > 1 ? BPF_CORE_READ(info, si_code) : (u64)info == 1 ? 0x80 : 0;
	u64 own = 0, mask = wanted_by(t, task->tgid, &own);
	struct event e;
	struct offer o = { .mask = mask & t->active[SIG_RAISED], .key = sig, .cpu = bpf_get_smp_processor_id(), .quiet = own };
	if (o.mask) {
		fill(&e, SIG_RAISED, task->tgid, task->pid, o.cpu, bpf_ktime_get_ns());
		e.values[0] = sig;
		e.values[1] = (u32)code;
		e.values[2] = bpf_get_current_pid_tgid() >> 32;
		e.values[3] = result;
		raise(t, &o, &e);
	}
	int fault = sig == 4 || sig == 5 || sig == 7 || sig == 8 || sig == 11;
	struct offer x = { .mask = mask & t->active[EXCEPTION], .key = sig, .cpu = o.cpu, .quiet = own };
	if (x.mask && fault && code > 0) {
		fill(&e, EXCEPTION, task->tgid, task->pid, x.cpu, bpf_ktime_get_ns());
		e.values[0] = sig;
		e.values[1] = (u32)code;
		e.values[2] = (u64)info > 1 ? fault_address(info) : 0;
		e.values[3] = 0;
		raise(t, &x, &e);
	}
	return 0;
}

SEC("tp_btf/signal_deliver")
int BPF_PROG(signal_deliver, int sig, struct kernel_siginfo *info, void *action)
{
	struct table *t = table();
	if (!t || !t->active[SIG_DELIVERED])
		return 0;
	u64 id = bpf_get_current_pid_tgid(), own = 0;
	struct offer o = { .mask = t->active[SIG_DELIVERED] & wanted_by(t, id >> 32, &own), .key = sig,
			   .cpu = bpf_get_smp_processor_id(), .quiet = own };
	if (!o.mask)
		return 0;
	struct event e;
	u64 handler = 0;
	// first word of k_sigaction: 0 default, 1 ignored, else the handler
	bpf_probe_read_kernel(&handler, sizeof handler, action);
	fill(&e, SIG_DELIVERED, id >> 32, id, o.cpu, bpf_ktime_get_ns());
	e.values[0] = sig;
	e.values[1] = (u32)((u64)info > 1 ? BPF_CORE_READ(info, si_code) : 0);
	e.values[2] = handler;
	e.values[3] = 0;
	raise(t, &o, &e);
	return 0;
}

// Interrupts have no process: they are offered to every subscription, and never wake the reader,
// since waking raises interrupts.
static __always_inline void interrupt(u32 kind, u32 number, u64 start, u64 a)
{
	struct table *t = table();
	if (!t || !t->active[kind])
		return;
	u64 now = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid();
	struct offer o = { .mask = t->active[kind], .duration = start ? now - start : 0, .key = number,
			   .cpu = bpf_get_smp_processor_id(), .quiet = 1 };
	struct event e;
	fill(&e, kind, id >> 32, id, o.cpu, now);
	e.values[0] = number;
	e.values[1] = o.duration;
	e.values[2] = a;
	e.values[3] = 0;
	raise(t, &o, &e);
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(irq_entry, int irq)
{
	struct cpu *c = this_cpu();
	if (c)
		c->irq_start = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_exit, int irq, void *action, int handled)
{
	struct cpu *c = this_cpu();
	if (c)
		interrupt(INTERRUPT, irq, c->irq_start, (u32)handled);
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(soft_entry, unsigned int vector)
{
	struct cpu *c = this_cpu();
	if (c)
		c->soft_start = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(soft_exit, unsigned int vector)
{
	struct cpu *c = this_cpu();
	if (c)
		interrupt(SOFT_INTERRUPT, vector, c->soft_start, 0);
	return 0;
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(page_fault, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	struct table *t = table();
	if (!t || !t->active[PAGE_FAULT])
		return 0;
	u64 id = bpf_get_current_pid_tgid(), own = 0;
	struct offer o = { .mask = t->active[PAGE_FAULT] & wanted_by(t, id >> 32, &own), .key = error,
			   .cpu = bpf_get_smp_processor_id(), .quiet = own };
	if (!o.mask)
		return 0;
	struct event e;
	fill(&e, PAGE_FAULT, id >> 32, id, o.cpu, bpf_ktime_get_ns());
	e.values[0] = address;
	e.values[1] = error;
	e.values[2] = REG_IP(regs);
	e.values[3] = 0;
	raise(t, &o, &e);
	return 0;
}

// ---- P_SYSC, P_FILE, P_NET, P_IPC: system calls

// What kind of object descriptor `fd` of the current process is.
static __always_inline u32 class_of_descriptor(struct task_struct *task, u32 fd)
{
	struct fdtable *fdt = BPF_CORE_READ(task, files, fdt);
	if (!fdt || fd >= BPF_CORE_READ(fdt, max_fds))
		return FILE_CALL;
	struct file **slots = BPF_CORE_READ(fdt, fd), *file = 0;
	bpf_probe_read_kernel(&file, sizeof file, slots + fd);
	if (!file)
		return FILE_CALL;
	u32 type = BPF_CORE_READ(file, f_inode, i_mode) & 0170000;
	if (type == 0010000)
		return IPC_CALL;
	if (type != 0140000)
		return FILE_CALL;
	struct socket *socket = BPF_CORE_READ(file, private_data);
	unsigned short family = BPF_CORE_READ(socket, sk, __sk_common.skc_family);
	return family == 1 ? NET_CALL | IPC_CALL : NET_CALL;
}

static __always_inline u32 class_of(struct task_struct *task, struct thread_call *call)
{
	u32 key = call->nr;
	u32 *class = bpf_map_lookup_elem(&classes, &key);
	if (!class)
		return 0;
	return *class & BY_DESCRIPTOR ? class_of_descriptor(task, call->arg0) : *class;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(call_begun, struct pt_regs *regs, long nr)
{
	struct table *t = table();
	if (!t)
		return 0;
	// Read once: where one subscription takes over from another, both never miss the call.
	u64 begun = *(volatile u64 *)&t->active[CALL_BEGUN], completed = t->active[CALL_COMPLETED];
	if (!(begun | completed))
		return 0;
	u64 id = bpf_get_current_pid_tgid(), own = 0, mask = (begun | completed) & wanted_by(t, id >> 32, &own);
	struct task_struct *task = bpf_get_current_task_btf();
	if (!mask || COMPAT(task))
		return 0;
	u32 key = nr, tid = id;
	struct thread_call call = { .time = bpf_ktime_get_ns(), .nr = nr, .arg0 = REG_ARG(regs, 0) };
	call.classes = class_of(task, &call);
	if (mask & completed)
		bpf_map_update_elem(&calls, &tid, &call, BPF_ANY);
	struct offer o = { .mask = mask & begun, .key = key, .classes = call.classes,
			   .cpu = bpf_get_smp_processor_id(), .quiet = own };
	if (!o.mask)
		return 0;
	struct event e;
	fill(&e, CALL_BEGUN, id >> 32, tid, o.cpu, call.time);
	e.values[0] = nr;
	e.values[1] = call.arg0;
	e.values[2] = REG_ARG(regs, 1);
	e.values[3] = REG_ARG(regs, 2);
	raise(t, &o, &e);
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(call_completed, struct pt_regs *regs, long result)
{
	struct table *t = table();
	if (!t || !t->active[CALL_COMPLETED])
		return 0;
	u64 id = bpf_get_current_pid_tgid(), own = 0, mask = t->active[CALL_COMPLETED] & wanted_by(t, id >> 32, &own);
	if (!mask)
		return 0;
	u32 tid = id;
	u64 now = bpf_ktime_get_ns();
	struct thread_call *begun = bpf_map_lookup_elem(&calls, &tid), call;
	if (begun) {
		call = *begun;
		bpf_map_delete_elem(&calls, &tid);
	} else {
		// It began before anybody subscribed: its duration is not known.
		struct task_struct *task = bpf_get_current_task_btf();
		if (COMPAT(task))
			return 0;
		call = (struct thread_call){ .time = now, .nr = REG_CALL(regs), .arg0 = REG_ARG(regs, 0) };
		call.classes = class_of(task, &call);
	}
	struct offer o = { .mask = mask, .duration = now - call.time, .key = call.nr, .classes = call.classes,
			   .cpu = bpf_get_smp_processor_id(), .quiet = own };
	struct event e;
	fill(&e, CALL_COMPLETED, id >> 32, tid, o.cpu, now);
	e.values[0] = call.nr;
	e.values[1] = result;
	e.values[2] = o.duration;
	e.values[3] = call.arg0;
	raise(t, &o, &e);
	return 0;
}
