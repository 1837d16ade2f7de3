/* Structures of the kernel's interface that have no freestanding header. */
#ifndef KERNEL_H
#define KERNEL_H

#include "sys.h"
#include <linux/elf.h>
#include <linux/fcntl.h>
#include <linux/mman.h>
#include <linux/prctl.h>
#include <linux/sched.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif
#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ull
#endif

#define PROC_SUPER_MAGIC 0x9fa0
#define SIGNAL_LIMIT 64
#define SIGILL 4
#define SIGTRAP 5
#define SIGBUS 7
#define SIGFPE 8
#define SIGKILL 9
#define SIGSEGV 11
#define SIGCHLD 17
#define SIGSTOP 19
#define SIGSYS 31
#define bit(signal) (1ul << ((signal) - 1))
#define ALL_SIGNALS (~0ul)

#define SIG_BLOCK 0
#define SIG_UNBLOCK 1
#define SIG_SETMASK 2

#define HANDLER_DEFAULT 0ul
#define HANDLER_IGNORE 1ul
#define SA_NOCLDSTOP 0x00000001ul
#define SA_NOCLDWAIT 0x00000002ul
#define SA_SIGINFO 0x00000004ul
#define SA_RESTORER 0x04000000ul
#define SA_ONSTACK 0x08000000ul
#define SA_RESTART 0x10000000ul
#define SA_NODEFER 0x40000000ul
#define SA_RESETHAND 0x80000000ul
#define SS_ONSTACK 1u
#define SS_DISABLE 2u
#define SS_AUTODISARM (1u << 31)
#define SI_QUEUE (-1)
#define SI_TIMER (-2)
#define TRAP_FLAG 0x100ul
#define SYS_SECCOMP 1       /* si_code of a call in whose place a filter sent the signal */
#define SYS_USER_DISPATCH 2 /* si_code of a dispatched call */

struct action {
    u64 handler, flags, restorer, mask;
};

struct alternate_stack {
    u64 base;
    u32 flags, pad;
    u64 size;
};

struct context {
    u64 flags, link;
    struct alternate_stack stack;
    u64 r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags;
    u64 segments, error, trap, oldmask, cr2;
    u64 vector_state; /* address; 0: none */
    u64 reserved[8];
    u64 mask;
};

struct signal_info {
    i32 number, error, code, pad;
    u64 value[14];
};

/* What the kernel puts on the stack for a handler, and what rt_sigreturn takes. */
struct frame {
    u64 return_address;
    struct context context;
    struct signal_info info;
};

#endif
