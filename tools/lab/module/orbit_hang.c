// SPDX-License-Identifier: GPL-2.0
// A kernel module that hangs a CPU on request, in one of several ways, and releases it by itself
// after a stated time. For a virtual machine only.
//
// Owns three files of /sys/module/orbit_hang/parameters:
//   begin   write "KIND CPU MILLISECONDS": hangs that CPU (or all, for kinds that end in "-all"). Write it from a CPU that
//           stays alive: the release of locks and of halted CPUs is a timer of the writer's CPU.
//   end     write anything, from a CPU that stays alive: the hang ends now.
//   state   read: "RUNNING BEGAN ENDED", the number of threads that have not ended yet, and the monotonic times in
//           nanoseconds at which the named CPU's hang began and ended (0: not yet).
// Kinds: preempt (a loop with preemption off), irq (a loop with interrupts off), lock (a spinlock
// taken twice), lock-irq (the same with interrupts off), order (two locks in opposite order against
// a thread that sleeps meanwhile), halt (HLT with interrupts off), kernel (a loop of ordinary
// kernel code, which a kernel without full preemption never interrupts); each of them also with
// "-all" behind it: both CPUs at once. order-all is two CPUs, each spinning for the other's lock;
// halt-all and lock-irq-all do not let go: no timer runs any more.
#include <linux/module.h>
#include <linux/kthread.h>
#include <linux/delay.h>
#include <linux/hrtimer.h>
#include <linux/spinlock.h>
#include <linux/nmi.h>
#include <asm/apic.h>
#include <asm/nmi.h>

enum kind { PREEMPT, IRQ, LOCK, LOCK_IRQ, ORDER, HALT, KERNEL, KINDS };
static const char *const names[KINDS] = { "preempt", "irq", "lock", "lock-irq", "order", "halt", "kernel" };

static DEFINE_SPINLOCK(first);
static DEFINE_SPINLOCK(second);
static DEFINE_MUTEX(one_at_a_time);
static struct hrtimer releaser;
static atomic_t running, arrived;
static enum kind kind;
static int victim, parties;
static u64 length_ns, began, ended;
static bool let_go, all;

static bool over(u64 since) { return READ_ONCE(let_go) || ktime_get_mono_fast_ns() - since >= length_ns; }

// Opens a lock whose owner will never do it. The spinning thread then gets it as if it had been
// handed over.
static void force_open(spinlock_t *lock)
{
	if (spin_is_locked(lock))
		arch_spin_unlock(&lock->rlock.raw_lock);
}

static void end_it(void)
{
	WRITE_ONCE(let_go, true);
	switch (kind) {
	case ORDER:
	case LOCK:
	case LOCK_IRQ:
		force_open(&first);
		force_open(&second);
		break;
	case HALT:
		apic->send_IPI(victim, NMI_VECTOR);
		break;
	default:
		break;
	}
}

static enum hrtimer_restart release(struct hrtimer *timer)
{
	end_it();
	// Repeated until all have left: a thread that came late, or an NMI before its HLT, must not hang
	// for ever.
	if (!atomic_read(&running))
		return HRTIMER_NORESTART;
	hrtimer_forward_now(timer, ms_to_ktime(20));
	return HRTIMER_RESTART;
}

// The NMI that wakes the halted CPU is ours, so the kernel need not wonder about it.
static int woken(unsigned int type, struct pt_regs *regs)
{
	return kind == HALT && READ_ONCE(let_go) ? NMI_HANDLED : NMI_DONE;
}

static noinline void spin(u64 since)
{
	while (!over(since))
		cpu_relax();
}

static noinline void lock_twice(spinlock_t *lock)
{
	spin_lock(lock);
	spin_lock(lock);
	spin_unlock(lock);
	preempt_enable(); // of the first time, which the releaser opened
}

// Takes `a`, waits until the other side has its own first lock too, then spins for `b`.
static noinline void lock_both(spinlock_t *a, spinlock_t *b)
{
	spin_lock(a);
	atomic_inc(&arrived);
	while (atomic_read(&arrived) < 2)
		cpu_relax();
	spin_lock(b);
	spin_unlock(b);
	preempt_enable(); // of `a`, which the releaser opened
}

// The sleeping side of ORDER: holds `second`, as a thread of another CPU would, and never gets
// `first`.
static void hold_second(void)
{
	arch_spin_lock(&second.rlock.raw_lock);
	atomic_inc(&arrived);
	while (!READ_ONCE(let_go))
		msleep(20);
}

static int hang(void *at)
{
	int me = (long)at;
	spinlock_t *mine = me == victim ? &first : &second;
	u64 since;
	unsigned long flags;

	if (kind == ORDER && !all && me != victim) {
		hold_second();
		atomic_dec(&running);
		return 0;
	}
	if (all && kind != ORDER) {
		atomic_inc(&arrived);
		while (atomic_read(&arrived) < parties)
			cond_resched();
	}
	since = ktime_get_mono_fast_ns();
	if (me == victim)
		WRITE_ONCE(began, since);
	switch (kind) {
	case PREEMPT:
		preempt_disable();
		spin(since);
		preempt_enable();
		break;
	case IRQ:
		local_irq_save(flags);
		spin(since);
		local_irq_restore(flags);
		break;
	case LOCK:
		lock_twice(mine);
		break;
	case LOCK_IRQ:
		local_irq_save(flags);
		lock_twice(mine);
		local_irq_restore(flags);
		break;
	case ORDER:
		lock_both(mine, me == victim ? &second : &first);
		break;
	case HALT:
		local_irq_save(flags);
		while (!READ_ONCE(let_go))
			asm volatile("hlt");
		local_irq_restore(flags);
		break;
	case KERNEL:
		spin(since);
		break;
	default:
		break;
	}
	if (me == victim)
		WRITE_ONCE(ended, ktime_get_mono_fast_ns());
	atomic_dec(&running);
	return 0;
}

static int begin_set(const char *text, const struct kernel_param *param)
{
	char name[16], *dash;
	int cpu, ms, n, error = 0;
	enum kind k;
	struct task_struct *threads[2] = {};

	if (sscanf(text, "%15s %d %d", name, &cpu, &ms) != 3)
		return -EINVAL;
	dash = strstr(name, "-all");
	if (dash)
		*dash = 0;
	for (k = 0; k < KINDS && strcmp(names[k], name); k++)
		;
	if (k == KINDS || cpu < 0 || cpu > 1 || !cpu_online(cpu) || num_online_cpus() != 2 || ms < 1 || ms > 60000)
		return -EINVAL;
	if (mutex_lock_interruptible(&one_at_a_time))
		return -EINTR;
	if (atomic_read(&running)) {
		mutex_unlock(&one_at_a_time);
		return -EBUSY;
	}
	kind = k;
	victim = cpu;
	all = dash;
	parties = all || k == ORDER ? 2 : 1;
	length_ns = (u64)ms * NSEC_PER_MSEC;
	began = ended = 0;
	let_go = false;
	atomic_set(&arrived, 0);
	spin_lock_init(&first);
	spin_lock_init(&second);
	for (n = 0; n < parties; n++) {
		// The victim's own thread last, so that creating the other does not wait for it.
		int where = n == parties - 1 ? cpu : 1 - cpu;
		threads[n] = kthread_create(hang, (void *)(long)where, "orbit_hang/%d", where);
		if (IS_ERR(threads[n])) {
			error = PTR_ERR(threads[n]);
			if (n)
				kthread_stop(threads[0]);
			goto out;
		}
		kthread_bind(threads[n], where);
	}
	atomic_set(&running, parties);
	hrtimer_start(&releaser, ns_to_ktime(length_ns), HRTIMER_MODE_REL_PINNED_HARD);
	for (n = 0; n < parties; n++)
		wake_up_process(threads[n]);
out:
	mutex_unlock(&one_at_a_time);
	return error;
}

static int end_set(const char *text, const struct kernel_param *param)
{
	// The timer, which comes later, handles those that this is too early for.
	end_it();
	return 0;
}

static int state_get(char *text, const struct kernel_param *param)
{
	return sysfs_emit(text, "%d %llu %llu\n", atomic_read(&running), READ_ONCE(began), READ_ONCE(ended));
}

static const struct kernel_param_ops begin_ops = { .set = begin_set };
static const struct kernel_param_ops end_ops = { .set = end_set };
static const struct kernel_param_ops state_ops = { .get = state_get };
module_param_cb(begin, &begin_ops, NULL, 0200);
module_param_cb(end, &end_ops, NULL, 0200);
module_param_cb(state, &state_ops, NULL, 0400);

static int __init load(void)
{
	hrtimer_init(&releaser, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	releaser.function = release;
	return register_nmi_handler(NMI_UNKNOWN, woken, 0, "orbit_hang");
}

static void __exit unload(void)
{
	hrtimer_cancel(&releaser);
	unregister_nmi_handler(NMI_UNKNOWN, "orbit_hang");
}

module_init(load);
module_exit(unload);
MODULE_DESCRIPTION("Hangs a CPU on demand, for a while");
MODULE_LICENSE("GPL");
