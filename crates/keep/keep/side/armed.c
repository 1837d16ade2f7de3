/* The handler for a program that was running already (`orbit keep --pid`): position-independent,
 * without libc and without data of its own.
 *
 * The keeper maps this code at a whole page, and the shared memory right after it (ARMED_BYTES
 * further). The entry is at 0, the signal restorer at 16. What the program's own action was is in a
 * table of the kernel's actions at ARMED_ACTIONS: it is put back before the program dies. The
 * thread waits on the handler's stack; nothing here is rolled back but that stack, where the thread
 * has no other.
 */
#include "side.h"
#include <linux/futex.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

#define ARMED_BYTES 8192
#define ARMED_ACTIONS 4096
#define ACTION_BYTES 32

__asm__(".text\n"
        "jmp armed_on_fatal\n"
        ".balign 16\n"
        "mov $15, %eax\n syscall\n" /* rt_sigreturn */
        ".balign 16\n");

static inline long call(long nr, long a, long b, long c, long d)
{
    long ret;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return ret;
}

static inline unsigned char *base(void)
{
    unsigned char *here;
    __asm__("lea armed_on_fatal(%%rip), %0" : "=r"(here));
    return (unsigned char *)((unsigned long)here & ~4095ul);
}

static inline int keeper_lives(const volatile struct keep_orders *orders)
{
    uint32_t word = orders->keeper;
    return word != 0 && !(word & FUTEX_OWNER_DIED);
}

__attribute__((used)) void armed_on_fatal(int sig, siginfo_t *info, ucontext_t *context)
{
    unsigned char *code = base();
    const unsigned char *own_action = code + ARMED_ACTIONS + sig * ACTION_BYTES;
    /* A child of the program, which is not kept: the place of signal 0 has the program's process
     * id. */
    if (call(SYS_getpid, 0, 0, 0, 0) != *(int *)(code + ARMED_ACTIONS)) {
        call(SYS_rt_sigaction, sig, (long)own_action, 0, 8);
        if (info->si_code <= 0)
            call(SYS_tgkill, call(SYS_getpid, 0, 0, 0, 0), call(SYS_gettid, 0, 0, 0, 0), sig, 0);
        return;
    }
    const volatile struct keep_orders *orders = (void *)(code + ARMED_BYTES);
    volatile struct keep_news *news = (void *)(code + ARMED_BYTES + KEEP_PAGE);
    volatile struct keep_both *both = (void *)(code + ARMED_BYTES + 2 * KEEP_PAGE);
    volatile struct keep_crash *crash = &both->crash;
    /* If another thread has crashed, it is that crash which the keeper deals with. */
    if (__atomic_load_n(&crash->state, __ATOMIC_SEQ_CST) == KEEP_NO_CRASH) {
        const greg_t *regs = context->uc_mcontext.gregs;
        crash->signal = (uint32_t)sig;
        crash->code = info->si_code;
        crash->tid = (uint32_t)call(SYS_gettid, 0, 0, 0, 0);
        crash->address = (uint64_t)info->si_addr;
        crash->ip = (uint64_t)regs[REG_RIP];
        crash->sp = (uint64_t)regs[REG_RSP];
        crash->bp = (uint64_t)regs[REG_RBP];
        crash->regs[0] = (uint64_t)regs[REG_RAX];
        crash->regs[1] = (uint64_t)regs[REG_RDX];
        crash->regs[2] = (uint64_t)regs[REG_RCX];
        crash->regs[3] = (uint64_t)regs[REG_RBX];
        crash->regs[4] = (uint64_t)regs[REG_RSI];
        crash->regs[5] = (uint64_t)regs[REG_RDI];
        crash->regs[6] = (uint64_t)regs[REG_RBP];
        crash->regs[7] = (uint64_t)regs[REG_RSP];
        for (int i = 0; i < 8; i++)
            crash->regs[8 + i] = (uint64_t)regs[REG_R8 + i];
        crash->regs[16] = (uint64_t)regs[REG_RIP];
        __atomic_store_n(&crash->state, KEEP_CRASHED, __ATOMIC_SEQ_CST);
    }
    __atomic_add_fetch(&news->bell, 1, __ATOMIC_SEQ_CST);
    call(SYS_futex, (long)&news->bell, FUTEX_WAKE, 1, 0);
    struct timespec step;
    while (keeper_lives(orders) && __atomic_load_n(&crash->state, __ATOMIC_SEQ_CST) != KEEP_GIVE_UP) {
        step.tv_sec = 0;
        step.tv_nsec = 20000000;
        call(SYS_futex, (long)&crash->state, FUTEX_WAIT, KEEP_CRASHED, (long)&step);
    }
    call(SYS_rt_sigaction, sig, (long)own_action, 0, 8);
    if (info->si_code <= 0)
        call(SYS_tgkill, call(SYS_getpid, 0, 0, 0, 0), call(SYS_gettid, 0, 0, 0, 0), sig, 0);
}
