// SPDX-License-Identifier: GPL-2.0
// A driver to be broken: computes check sums (CRC-32) of blocks, as a device would. The victim of
// faults injected at random into its code (lab/src/guest/faults.rs). For a virtual machine only.
//
// Owns /dev/NAME, NAME being the module's own, so that copies under other names can be loaded side
// by side. A write of 1 to 4096 bytes is a block; the next read of the same descriptor gives its
// check sum, 4 bytes, and waits for it up to a second. What a driver has is here: a ring under a
// spinlock, a work item that empties it, a timer that serves both, waiting callers.
#include <linux/module.h>
#include <linux/miscdevice.h>
#include <linux/fs.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/uaccess.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#define BLOCK 4096
#define RING 8 // a power of two; fewer than callers, so that callers wait for room

enum state { EMPTY, QUEUED, DONE };

// One a descriptor. `state` is changed under `lock`, the rest by whoever has the block: the caller,
// or while it is QUEUED the work item.
struct job {
	enum state state;
	size_t length;
	u32 sum;
	u8 data[BLOCK];
};

static DEFINE_SPINLOCK(lock); // the ring, its ends, every job's state
static struct job *ring[RING];
static unsigned int head, tail; // next to take, next to fill
static u64 turns, late;
static u32 table[256];
static DECLARE_WAIT_QUEUE_HEAD(waiting);

static noinline u32 sum_of(const u8 *data, size_t length)
{
	u32 sum = ~0u;

	while (length--)
		sum = sum >> 8 ^ table[(sum ^ *data++) & 0xff];
	return ~sum;
}

static noinline bool push(struct job *job)
{
	unsigned long flags;
	bool room;

	spin_lock_irqsave(&lock, flags);
	room = tail - head < RING;
	if (room) {
		job->state = QUEUED;
		ring[tail++ % RING] = job;
	}
	spin_unlock_irqrestore(&lock, flags);
	return room;
}

static noinline struct job *pop(void)
{
	unsigned long flags;
	struct job *job = NULL;

	spin_lock_irqsave(&lock, flags);
	if (head != tail)
		job = ring[head++ % RING];
	spin_unlock_irqrestore(&lock, flags);
	return job;
}

static noinline void finish(struct job *job)
{
	unsigned long flags;

	spin_lock_irqsave(&lock, flags);
	job->state = DONE;
	spin_unlock_irqrestore(&lock, flags);
	wake_up_all(&waiting);
}

static void work_off(struct work_struct *work)
{
	struct job *job;

	while ((job = pop())) {
		job->sum = sum_of(job->data, job->length);
		finish(job);
	}
}
static DECLARE_WORK(work, work_off);

static void serve(struct timer_list *timer)
{
	unsigned long flags;
	unsigned int n;

	spin_lock_irqsave(&lock, flags);
	turns++;
	for (n = head; n != tail; n++)
		if (ring[n % RING]->state == QUEUED)
			late++;
	if (head != tail)
		schedule_work(&work);
	spin_unlock_irqrestore(&lock, flags);
	mod_timer(timer, jiffies + 1);
}
static DEFINE_TIMER(timer, serve);

static int crc_open(struct inode *inode, struct file *file)
{
	file->private_data = kzalloc(sizeof(struct job), GFP_KERNEL);
	return file->private_data ? 0 : -ENOMEM;
}

static int crc_release(struct inode *inode, struct file *file)
{
	// A block whose caller went away may still be in the ring.
	flush_work(&work);
	kfree(file->private_data);
	return 0;
}

static ssize_t crc_write(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	struct job *job = file->private_data;

	if (!length || length > BLOCK)
		return -EINVAL;
	if (job->state == QUEUED)
		return -EBUSY;
	if (copy_from_user(job->data, from, length))
		return -EFAULT;
	job->length = length;
	if (wait_event_interruptible_timeout(waiting, push(job), HZ) <= 0)
		return -EAGAIN;
	schedule_work(&work);
	return length;
}

static ssize_t crc_read(struct file *file, char __user *to, size_t length, loff_t *at)
{
	struct job *job = file->private_data;

	if (length < sizeof(job->sum))
		return -EINVAL;
	if (wait_event_interruptible_timeout(waiting, READ_ONCE(job->state) == DONE, HZ) <= 0)
		return -ETIME;
	if (copy_to_user(to, &job->sum, sizeof(job->sum)))
		return -EFAULT;
	job->state = EMPTY;
	return sizeof(job->sum);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = crc_open,
	.release = crc_release,
	.write = crc_write,
	.read = crc_read,
};

static struct miscdevice device = { .minor = MISC_DYNAMIC_MINOR, .name = KBUILD_MODNAME, .fops = &operations };

static int __init load(void)
{
	u32 n, bit, sum;
	int error;

	for (n = 0; n < 256; n++) {
		for (sum = n, bit = 0; bit < 8; bit++)
			sum = sum & 1 ? sum >> 1 ^ 0xedb88320 : sum >> 1;
		table[n] = sum;
	}
	error = misc_register(&device);
	if (!error)
		mod_timer(&timer, jiffies + 1);
	return error;
}

static void __exit unload(void)
{
	misc_deregister(&device);
	del_timer_sync(&timer);
	cancel_work_sync(&work);
}

module_init(load);
module_exit(unload);
MODULE_DESCRIPTION("Computes check sums, until it is broken");
MODULE_LICENSE("GPL");
