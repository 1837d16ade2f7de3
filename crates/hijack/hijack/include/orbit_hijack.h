/*
 * The executive's interface for policy objects and for guests that know of it. x86-64 only.
 *
 * A *policy object* is a shared object without a library that runs in each guest process, on the
 * executive's side:
 *
 *     cc -O2 -ffreestanding -fPIC -shared -nostdlib -mgeneral-regs-only -fcf-protection=none -o policy.so policy.c
 *     orbit hijack --policy-object policy.so -- program
 *
 * It exports one `const struct orbit_policy orbit_policy`. Its functions run on the calling thread,
 * several at once in a program with threads, on a stack of about 24 KiB. They may use
 * `orbit_executive` and system calls through it, and nothing else of the process: the guest's
 * pointers may be wrong, so `read`, `write` and `string` copy for them. memcpy, memmove, memset,
 * memcmp and strlen are available. Vector registers hold the guest's values: compile with
 * -mgeneral-regs-only, or set ORBIT_POLICY_VECTORS.
 *
 * A *guest* that knows of the executive includes this file too, and calls `orbit_rpc` and the
 * functions behind it.
 */
#ifndef ORBIT_HIJACK_H
#define ORBIT_HIJACK_H

#ifdef __cplusplus
extern "C" {
#endif

typedef unsigned long orbit_u64;
typedef long orbit_i64;
typedef unsigned int orbit_u32;

#define ORBIT_HIJACK_VERSION 1

/* Registers of the guest. rcx and r11 are the kernel's to destroy at a call, and 0 there. */
struct orbit_registers {
    orbit_u64 rax, rbx, rdx, rsi, rdi, rbp, rsp, r8, r9, r10, r12, r13, r14, r15;
    orbit_u64 rip; /* of a call: where the guest continues after it */
    orbit_u64 rcx, r11, rflags;
};

/* One system call. */
struct orbit_call {
    orbit_u64 number;
    orbit_u64 arguments[6]; /* as the kernel gets them; `call` may alter them */
    orbit_i64 result;       /* in `result`: of the kernel, may be altered; in `call`: the answer */
    orbit_u64 site;         /* address of the syscall instruction */
    orbit_u32 tid, pid;
    struct orbit_registers *registers; /* may be altered, except rip and rflags */
};

/* What `call` returns. */
#define ORBIT_PASS 0   /* the kernel makes the call */
#define ORBIT_ANSWER 1 /* `result` is the result; no call is made, and `result` is not called */

/* A guest context, for `pick`. */
struct orbit_context_view {
    orbit_u32 id;
    orbit_u32 share;  /* as given when it was made */
    orbit_u64 cycles; /* it has run, by the time stamp counter */
};

struct orbit_policy {
    orbit_u32 version; /* ORBIT_HIJACK_VERSION */
    orbit_u32 flags;   /* ORBIT_POLICY_* */
    /* The calls for which `call` and `result` are asked: bit n % 64 of word n / 64. */
    orbit_u64 calls[8];
    /* Each may be NULL. */
    void (*start)(void); /* a process begins: at its start, and after each exec. Not after fork */
    int (*call)(struct orbit_call *call);
    void (*result)(struct orbit_call *call);
    orbit_i64 (*rpc)(orbit_u64 number, orbit_u64 a, orbit_u64 b, orbit_u64 c); /* below ORBIT_RPC_OWN */
    void (*timer)(struct orbit_registers *registers); /* see `set_timer`; all registers but vectors may be altered */
    orbit_u32 (*pick)(const struct orbit_context_view *ready, orbit_u32 count); /* index of the context to run */
};
#define ORBIT_POLICY_VECTORS 1 /* uses SSE registers, which the executive then saves */

/* Calls of a policy. A call that a signal precedes is presented again after the guest's handler. */
struct orbit_executive {
    orbit_i64 (*system_call)(orbit_u64 number, orbit_u64 a, orbit_u64 b, orbit_u64 c, orbit_u64 d, orbit_u64 e,
                             orbit_u64 f); /* not seen by rules or traces */
    orbit_i64 (*read)(void *to, orbit_u64 guest, orbit_u64 bytes);        /* 0 or -EFAULT */
    orbit_i64 (*write)(orbit_u64 guest, const void *from, orbit_u64 bytes); /* 0 or -EFAULT */
    orbit_i64 (*string)(char *to, orbit_u64 guest, orbit_u64 limit);      /* length, -EFAULT, -ENAMETOOLONG */
    /* Asks the host's decider: ORBIT_PASS, or ORBIT_ANSWER with `result` set. Waits, 1 s at most
     * by default. */
    int (*ask)(struct orbit_call *call);
    /* A number for the host, shown with the trace: Session::notes. */
    void (*note)(orbit_u64 value);
    /* `timer` is called each time this thread has used so much CPU time; 0 ends it. 0 or -errno. */
    orbit_i64 (*set_timer)(orbit_u64 nanoseconds);
    /* ORBIT_SHARE_BYTES that all guests of the session and the host share; zero at first. Trust
     * none of it. */
    void *share;
};
#define ORBIT_SHARE_BYTES 65536

#ifdef ORBIT_POLICY_OBJECT
extern const struct orbit_policy orbit_policy;
/* Defined by the executive. */
extern const struct orbit_executive orbit_executive;
#endif

/* What guests can call beside the policy's numbers. */
#define ORBIT_RPC_OWN 0x10000ul
#define ORBIT_RPC_NOTHING 0x10000ul       /* returns 0 */
#define ORBIT_RPC_CALL 0x10001ul          /* channel, words, result */
#define ORBIT_RPC_RECEIVE 0x10002ul       /* channel, words */
#define ORBIT_RPC_REPLY 0x10003ul         /* channel, result */
#define ORBIT_RPC_CONTEXT_CREATE 0x10004ul
#define ORBIT_RPC_CONTEXT_RUN 0x10005ul
#define ORBIT_RPC_CONTEXT_YIELD 0x10006ul
#define ORBIT_RPC_CONTEXT_END 0x10007ul
#define ORBIT_RPC_CONTEXT_CYCLES 0x10008ul

#define ORBIT_CHANNELS 64
#define ORBIT_CHANNEL_WORDS 6
#define ORBIT_MAX_CONTEXTS 64

#ifndef ORBIT_POLICY_OBJECT
#define ORBIT_PRCTL_GATE 0x4f726274 /* prctl option: natively EINVAL, under the executive the gate's address */

/* The executive's gate; 0: this program runs natively. */
static inline orbit_i64 orbit_gate(void) {
    static orbit_i64 gate;
    if (!gate) {
        orbit_i64 result;
        __asm__ volatile("syscall"
                         : "=a"(result)
                         : "a"(157L), "D"((long)ORBIT_PRCTL_GATE), "S"(0L), "d"(0L)
                         : "rcx", "r11", "memory");
        gate = result > 0 ? result : -1;
    }
    return gate > 0 ? gate : 0;
}

/* Calls the policy's `rpc` (numbers below ORBIT_RPC_OWN) or the executive. -ENOSYS natively and
 * without a policy. */
static inline orbit_i64 orbit_rpc(orbit_u64 number, orbit_u64 a, orbit_u64 b, orbit_u64 c) {
    orbit_i64 gate = orbit_gate();
    return gate ? ((orbit_i64(*)(orbit_u64, orbit_u64, orbit_u64, orbit_u64))gate)(number, a, b, c) : -38;
}

/*
 * Between guests of a session: a call of another process, which waits for its reply. `words` are
 * the request. A wrong address is a fault, as in any function. Returns 0 with `*result` set; -EINTR
 * if a signal came before the request was taken; -EPIPE if the receiver died.
 */
static inline orbit_i64 orbit_channel_call(orbit_u32 channel, const orbit_u64 words[ORBIT_CHANNEL_WORDS],
                                           orbit_i64 *result) {
    return orbit_rpc(ORBIT_RPC_CALL, channel, (orbit_u64)words, (orbit_u64)result);
}

/* Waits for a request. 0, -EINTR, -EBUSY if another thread receives on this channel. */
static inline orbit_i64 orbit_channel_receive(orbit_u32 channel, orbit_u64 words[ORBIT_CHANNEL_WORDS]) {
    return orbit_rpc(ORBIT_RPC_RECEIVE, channel, (orbit_u64)words, 0);
}

/* Answers the request that this thread received last on the channel. 0, or -EINVAL if there is
 * none. */
static inline orbit_i64 orbit_channel_reply(orbit_u32 channel, orbit_i64 result) {
    return orbit_rpc(ORBIT_RPC_REPLY, channel, (orbit_u64)result, 0);
}

/*
 * Contexts: several flows of control on one kernel thread. A context runs `function(argument)` on
 * the stack that ends at `stack_end`; its CPU time is in proportion to `share` (1 to 1000).
 * Contexts of a thread share its signal mask and thread-local storage. Returns the context's id
 * from 1, or -EAGAIN beyond ORBIT_MAX_CONTEXTS, -EINVAL.
 */
struct orbit_context_request {
    void (*function)(void *);
    void *argument;
    void *stack_end;
    orbit_u64 share;
};
static inline orbit_i64 orbit_context_create(const struct orbit_context_request *request) {
    return orbit_rpc(ORBIT_RPC_CONTEXT_CREATE, (orbit_u64)request, 0, 0);
}

/* Runs this thread's contexts until all have returned; changes between them after `slice` ns of
 * CPU time (0: only where they yield). 0, or -EINVAL in a context. */
static inline orbit_i64 orbit_context_run(orbit_u64 slice) { return orbit_rpc(ORBIT_RPC_CONTEXT_RUN, slice, 0, 0); }

/* Lets another context run. */
static inline orbit_i64 orbit_context_yield(void) { return orbit_rpc(ORBIT_RPC_CONTEXT_YIELD, 0, 0, 0); }

/* Cycles that a context of this thread has run. */
static inline orbit_i64 orbit_context_cycles(orbit_u64 id) { return orbit_rpc(ORBIT_RPC_CONTEXT_CYCLES, id, 0, 0); }
#endif

#ifdef __cplusplus
}
#endif
#endif
