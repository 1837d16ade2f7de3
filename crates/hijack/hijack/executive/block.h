/*
 * The state of one guest thread (a *block*, found through the gs base), and the functions of the
 * executive.
 *
 * Words: a *site* is the address of a syscall instruction of the guest. A *stub* is our code for
 * one site. A call is *dispatched* when it reaches a stub: by SIGSYS, or by a jump once the site is
 * rewritten.
 *
 * Invariants
 * - The gs base points to the thread's block from before its first guest instruction until it ends.
 * - SIGSYS is never blocked while guest code runs, or the kernel kills the process. `sys_blocked`
 *   says what the guest believes.
 * - A signal that arrives in a stub is moved to an edge of the site. One that arrives in the
 *   executive is *deferred*: kept in `deferred`, all signals blocked, `pending` raised, delivered
 *   when the thread leaves the executive.
 * - So no function of the executive runs twice at once in one thread, except `on_signal`, which
 *   then only defers.
 */
#ifndef BLOCK_H
#define BLOCK_H

#include "abi.h"
#include "kernel.h"
#include "offsets.h"

#define STACK_BYTES 32768
/* Variables that nearly all processes write lie together, and the fronts of two tables behind
 * them. */
#define HOT __attribute__((section(".hot,\"aw\",@nobits#")))
#define HOT_LAST __attribute__((section(".hotlast,\"aw\",@nobits#")))
#define FRAME_BYTES 16384
/*
 * A block begins in the middle of a page. The other half, before it, is the end of its stack: most
 * calls touch no other page. The signal stack begins at the end of a page, so that a frame touches
 * few.
 */
#define BLOCK_BEGINS 2048
#define FIRST_STACK (STACK_BYTES + BLOCK_BEGINS)
#define MAX_THREADS 4096
#define MAX_SPINS 400 /* of about 40 cycles, while a thread waits for another guest */

struct action_table {
    u32 users;
    u32 pad;
    struct action actions[SIGNAL_LIMIT + 1];
};

/* One site. */
struct stub {
    u8 code[64];
    u64 back; /* the address behind the syscall instruction */
    u64 site;
    u64 hits;   /* by SIGSYS */
    u32 state;  /* STUB_* */
    u32 number; /* 1-based, in the order of first calls */
    u32 copied; /* bytes of the guest's code in front of the site that the trampoline has too */
    u32 next_free; /* 1-based index; only of free stubs */
    u8 pad[24];
};
#define STUB_NEW 0
#define STUB_REWRITTEN 1
#define STUB_LEFT 2
#define STUB_GONE 3 /* its code is being unmapped: free, unless a call at the site comes first */
_Static_assert(sizeof(struct stub) == 128, "stubs are found by their address");

/* What a rule judged of the guest's memory: the kernel gets it, whatever is there by then. */
#define MAX_JUDGED 3
struct judged {
    u32 argument; /* its number from 1; 0: none */
    i32 bytes;    /* a socket address; of a string its length; negative: it cannot be read */
    u64 value;    /* the argument since then */
};

struct block {
    u64 self;
    u64 stack_top;
    /* Registers of the guest at the call, in the order of `struct orbit_registers`. */
    u64 rax, rbx, rdx, rsi, rdi, rbp, rsp, r8, r9, r10, r12, r13, r14, r15;
    u64 rip;                /* where the guest continues */
    u64 unused[3];          /* rcx, r11, rflags: a call destroys them */
    struct stub *stub;
    u32 pending;          /* a signal is deferred */
    u32 restarted;        /* the kernel had begun the call, and wants it begun again */
    volatile u64 *counts; /* this thread's; no other thread writes them */
    u64 call[7];          /* number and arguments as the kernel gets them */
    u64 object_sp;        /* stack to return to from the policy object; 0: it does not run */
    u32 tid, pid;
    u32 index;       /* of this block */
    u32 process;     /* number in the session: see `struct slot` */
    u32 sys_blocked; /* whether SIGSYS seems blocked */
    u32 sys_next;    /* the same once the current call has succeeded */
    u32 deferred_signal;
    struct action_table *table;
    struct alternate_stack alternate; /* what the guest set */
    u64 child_mask, child_flags;      /* for the thread being made */
    u64 parent_tid;
    u64 scratch[8];             /* altered copies of what arguments point to */
    volatile struct slot *slot; /* NULL: none */
    u32 traced;                 /* an entry record was written for the current call */
    u32 record_bytes;           /* of the record being built */
    struct rule *undo[4];       /* rules whose counters the current call raised */
    u32 undo_count;
    u64 extra, extra_bytes; /* memory for exec's arguments, which a vfork child leaves behind */
    u64 random;
    u32 object_failed;         /* OBJECT_*: why the policy object's function was left */
    u32 stepping;              /* the guest runs with the trap flag */
    u32 spins, waits;          /* before this thread sleeps for another guest; how often it waited */
    i32 timer;                 /* the kernel's id; -1: none */
    u32 rule;                  /* that asks; ~0: the policy object */
    u64 wait_began, wait_shown; /* the current wait's, where clocks stand still; wait_began 0: it is none */
    struct contexts *contexts; /* NULL: none were made */
    struct filter *filters;    /* of the guest's own, newest first; NULL: none */
    struct filter *fresh;      /* being installed */
    struct judged judged[MAX_JUDGED];
    u32 denied;                /* these do not let the current call pass */
    struct stub spare;         /* for a call at a site that the table has no room for; its code never runs */
    u64 vectors[64] __attribute__((aligned(64))); /* SSE state of the guest while the policy object runs */
    char path[4096] __attribute__((aligned(BLOCK_BEGINS))); /* a string that the executive reads or replaces */
    char copies[MAX_JUDGED][4096]; /* of what `judged` says */
    u8 record[MAX_RECORD] __attribute__((aligned(8)));
    u8 deferred[FRAME_BYTES] __attribute__((aligned(64)));
    u8 signal_stack[STACK_BYTES] __attribute__((aligned(64)));
    u8 next_stack[FIRST_STACK]; /* of the next block: it ends where that begins */
};
_Static_assert(sizeof(struct block) % 4096 == 0, "all blocks begin at one place of a page");
_Static_assert(offset_of(struct block, path) == 4096 - BLOCK_BEGINS, "what each call uses lies in one page");
_Static_assert((BLOCK_BEGINS + offset_of(struct block, next_stack)) % 4096 == 0,
    "a frame of a signal lies in one page");
_Static_assert(offset_of(struct block, r15) == B_R15, "offsets.h");
_Static_assert(offset_of(struct block, rip) == B_RIP, "offsets.h");
_Static_assert(offset_of(struct block, pending) == B_PENDING, "offsets.h");
_Static_assert(offset_of(struct block, counts) == B_COUNTS, "offsets.h");
_Static_assert(offset_of(struct block, call) == B_CALL, "offsets.h");
_Static_assert(offset_of(struct block, object_sp) == B_OBJECT_SP, "offsets.h");

ALWAYS_INLINE struct block *this_block(void) {
    struct block *block;
    __asm__ volatile("mov %%gs:0, %0" : "=r"(block));
    return block;
}

/* link.ld */
extern char executive_start[], executive_end[];

/* entry.S: labels that `on_signal` compares addresses with. */
extern char slow_entry[], slow_save[], slow_saved[], leave[], leave_end[];
extern char gate_check[], gate_end[], object_escape[], context_end[];
i64 call_object(u64 function, u64 a, u64 b, u64 c, u64 d);
extern char kernel_check[], kernel_call[], kernel_made[], kernel_trapped[], kernel_abort[];
extern char sigreturn_begin[], sigreturn_call[], own_call[], own_called[];
extern char wait_check[], wait_call[], wait_called[], wait_ended[];
/* The futex call, or -EINTR without it if a signal is pending, whenever that comes. */
i64 wait_unless_pending(volatile u32 *word, u64 operation, u64 value, const u64 *limit);
void restorer(void);
__attribute__((noreturn)) void return_through(struct frame *frame);
__attribute__((noreturn)) void begin_guest(u64 stack, u64 address);
i64 make_thread(i64 number, u64 *arguments, struct block *child);
__attribute__((noreturn)) void end_thread(u64 status, volatile u32 *busy);

/* threads.c */
struct block *new_block(void);
void free_block(struct block *block);
/* Whether the process has no other thread, nor one that is being made. */
int is_only_thread(void);
/* Does this with each other thread of the process, also with one that is being made. The lock of
 * sites is held. */
void each_thread(struct block *block, void (*use)(struct block *thread, struct block *block));
/* Maps memory of the executive's own, which is no part of a core. 0: that fails. */
int map_own(u64 address, u64 bytes);
/* Whether it is a thread that has this memory, of whatever process. */
int shares_memory(u64 tid);
void free_table(struct action_table *table);
struct action_table *new_table(void);
void arm(struct block *block);
i64 clone_thread(struct block *block, i64 number);
__attribute__((noreturn)) void exit_thread(struct block *block, u64 status);
/* Makes the block of the process' first thread and sets its gs base. */
void make_first_block(void);

/* sites.c: stubs, under one lock. */
/* Offsets in the code. It begins with what r11 = stub and a valid number in rax may use, and
 * nothing else. */
#define STUB_SYSCALL 30 /* the syscall instruction */
#define STUB_ENTRY 40   /* where calls of any number enter */
extern u8 call_flags[MAX_CALLS];
#define FLAG_SPECIAL 1
#define FLAG_TRACE 2
#define FLAG_POLICY 4
#define FLAG_SAVE 8
#define FLAG_OBJECT 16
struct stub *stub_at(u64 address);
struct stub *stub_of_site(u64 site, u64 number);
/* The code in this range changes, or is about to be unmapped: what was known of it is void. */
void reset_sites(u64 address, u64 bytes, int is_unmapped);
/* The code in this range was unmapped: its stubs are free. */
void free_sites(u64 address, u64 bytes);
/* Whether a site is neither rewritten nor left as it is. The lock is held. */
int is_new_site(u64 site);
/* Rewrites a site before its first call. The lock is held. */
void rewrite_early(u64 site, u64 number);
void lock_sites(void);
void unlock_sites(void);

/* rewrite.c */
void rewrite(struct stub *stub, u64 number);
u64 edge_of_trampoline(u64 address);
void forget_code(u64 address, u64 bytes);
/*
 * A private read-execute mapping of a file, which may be rewritten: its identity (0: not known) and
 * the offset of its begin. Sites in it that are known to be worth it are rewritten.
 */
void know_code(u64 begin, u64 end, u64 file, u64 offset);
/* Does this with each such mapping: begin, end, file, offset. */
void each_range(void (*use)(u64, u64, u64, u64));
/* Between these two, by one thread that holds the lock of sites, code of one mapping is
 * rewritten. 0: that fails. */
int open_code(u64 low, u64 high, u64 begin, u64 end);
void close_code(void);
/* A call at the site came by signal. */
void hint_site(u64 site, u64 number);

/* hints.c */
void use_hints(int on);
/* What a file is known by, 0: nothing. */
u64 identity(i64 file);
void hint(u64 file, u64 offset, u64 number);
void apply_hints(u64 begin, u64 end, u64 file, u64 offset);
/* Before a fork: for what has become worth it since. */
void apply_new_hints(void);

/* signals.c. Events are deferred as signals are, with numbers of their own. */
#define EVENT_TICK 65
#define EVENT_STOP 66
#define EVENT_STEP 67 /* an instruction of a guest that is stepped has run */
void on_signal(int signal, struct signal_info *info, struct context *context);
i64 set_kernel_action(u32 signal, u64 handler, u64 flags, u64 mask);
void catch_dispatch(void);
/* Faults come to `on_signal` for the policy object's sake, whatever the guest's actions are. */
void catch_fault(u32 signal);
void catch_faults(void);
__attribute__((noreturn)) void deliver_deferred(struct block *block);
u64 vector_bytes(u64 state);
i64 do_sigaction(struct block *block);
i64 do_sigaltstack(struct block *block);

/* dispatch.c */
extern u32 options;

/* data/widths.tsv: the arguments, by bits, of which the kernel takes 32 or 16 bits, or that may be
 * addresses. */
struct width {
    u8 words, halves, pointers;
};
extern const struct width call_widths[MAX_CALLS];

/* filters.c: the guest's own seccomp filters */
/* Whether they let the current call pass as the guest made it. */
int filters_pass(struct block *block);
/* prctl and seccomp: ENTER_DONE, or ENTER_KERNEL with our filter in the place of the guest's. */
int set_filter(struct block *block);
void filter_was_set(struct block *block);
struct filter *share_filters(struct filter *filter);
void drop_filters(struct filter *filter);
/* Over exec: a file with the filters, or an error. */
i64 save_filters(struct block *block);
void load_filters(struct block *block, i64 file);

/* special.c */
int special(struct block *block);
void special_after(struct block *block);
/* Whether the guest's string names its own executable in /proc, which is the executive's for the
 * kernel. */
int is_own_executable(struct block *block, u64 path);

/* time.c: ENTER_DONE, or ENTER_KERNEL with altered times */
int virtual_time(struct block *block);
void virtual_time_after(struct block *block);

/* protect.c */
/*
 * The session's descriptors, open over exec: its memory, then the executive's file. For the guest
 * these numbers are not open.
 */
extern u64 kept; /* the first */
#define KEPT 2
ALWAYS_INLINE int is_kept(u64 file) { return (u32)file - (u32)kept < KEPT; }
/* Whether an argument that is an address is one of the executive's memory, where for the guest
 * nothing is. */
int points_at_executive(const struct block *block);
/* Sets the result of a call that may not pass, and counts it. Returns 0. */
int refuse(struct block *block, i64 error);
/* Whether the call may pass; else sets the result and counts it. */
int may_pass(struct block *block);
/* Whether the open file is some process' memory. */
int is_memory_file(i64 file);

/* execve.c */
extern char executable[4096]; /* path of the guest's program */
i64 do_execve(struct block *block, i64 directory, u64 path, u64 arguments, u64 environment, u64 flags);

/* load.c */
struct image {
    u64 start;   /* where execution begins */
    u64 entry;   /* of the program */
    u64 headers; /* address of the program headers */
    u64 header_count;
    u64 base; /* of the interpreter; 0: none */
};
void load_program(i64 file, struct image *image);
/* Whether the file can be run: 0, or the error that execve gives. */
i64 check_program(i64 file, u32 depth);
/* Splits the `#!` line in `text`; the optional argument may be NULL. */
char *script_line(char *text, char **argument);

/* trace.c */
/* The process' number: a new one, or, after exec, the one it had. */
void begin_process(struct block *block, u32 known);
int host_is_alive(void);
void open_slot(struct block *block, i64 parent, i64 kind);
void close_slot(struct block *block);
/* All slots of the process, which ends. Not where calls are traced: then the host does it. */
void close_slots(struct block *block);
void trace_entry(struct block *block);
void trace_exit(struct block *block);
void trace_abort(struct block *block);
void trace_signal(struct block *block, struct signal_info *info);
void trace_first_exec(struct block *block, u64 arguments, u64 environment, const char *path, int first);
void trace_note(struct block *block, u64 rule, u64 action);

/* object.c */
#define OBJECT_FAULTED 1
#define OBJECT_LOOPED 2
#define IS_FAULT(signal) ((signal) == SIGSEGV || (signal) == SIGBUS || (signal) == SIGILL || (signal) == SIGFPE)
#define FAULT_MASK (bit(SIGSEGV) | bit(SIGBUS) | bit(SIGILL) | bit(SIGFPE))
extern u32 has_object;
extern volatile u32 object_is_off; /* it faulted in this process, and calls pass */
void load_object(void);
int object_call(struct block *block);
void object_result(struct block *block);
i64 object_rpc(struct block *block, u64 number, u64 a, u64 b, u64 c);
void object_timer(struct block *block, struct context *context);
u32 object_pick(struct block *block, const void *ready, u32 count); /* ~0: it has no choice of its own */
i64 set_tick(struct block *block, u64 nanoseconds);

/* ask.c */
int ask_host(struct block *block, i64 *result);

/* channels.c */
i64 channel_call(struct block *block, u64 channel, const u64 *words, i64 *result);
i64 channel_receive(struct block *block, u64 channel, u64 *words);
i64 channel_reply(struct block *block, u64 channel, i64 result);

/* contexts.c */
void free_contexts(struct block *block);
i64 context_create(struct block *block, u64 request);
i64 context_run(struct block *block, u64 slice);
i64 context_yield(struct block *block);
i64 context_end_current(struct block *block);
i64 context_cycles(struct block *block, u64 id);
/* A timer event in guest code: the frame may become another context's. */
void context_tick(struct block *block, struct context *context);

/* stop.c */
void stop_thread(struct block *block, struct context *context);
void copy_registers_out(const struct context *context, u64 *registers);
void copy_registers_in(struct context *context, const u64 *registers);

/* policy.c */
int policy(struct block *block);
/*
 * The path that an argument names, as text: of a string, or of the address of a unix socket
 * (`@name`: an abstract one). NULL: it names none. The kernel gets what was judged.
 */
const char *judged_path(struct block *block, u32 argument);
void policy_undo(struct block *block);

#endif
