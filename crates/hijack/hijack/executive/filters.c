/*
 * Seccomp filters of the guest's own.
 *
 * A filter judges all calls of its thread, the executive's too, of which its author knows nothing.
 * So the executive makes its own calls by one instruction that makes no others (`own_call`), and a
 * guest's filter is installed with a prefix: what comes from that instruction and is in `own_calls`
 * passes; everything else meets the guest's program unchanged. What is called for the guest is
 * called from other instructions, with the guest's number and arguments.
 *
 * Calls that the executive answers itself, or that it prepares, never meet the kernel's filters as
 * the guest made them. They are judged here first, by the same programs: each thread knows its
 * filters, newest first, as the kernel does. A call that they do not let pass goes to the kernel as
 * the guest made it, which then denies it in the filter's way. The kernel keeps filters over exec;
 * what is known of them goes along in a file.
 *
 * Refused is what this cannot hold for: strict mode; filters that read the instruction pointer,
 * which is a stub's; listeners, which would see calls that are no calls of the guest's; programs
 * that do not fit with the prefix.
 */
#include "block.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#define FILTERS_ADDRESS 0x1f2c00000000ul
#define FILTER_PAGES 9ul
#define MAX_FILTERS 4096

struct filter {
    volatile u32 users; /* threads and newer filters; 0: the place is free */
    u32 count;          /* of instructions */
    struct filter *previous;
    u64 passes[MAX_CALLS / 64];            /* calls that pass whatever their arguments are */
    struct sock_filter code[BPF_MAXINSNS]; /* the prefix, then the guest's program */
};
_Static_assert(sizeof(struct filter) <= FILTER_PAGES * 4096, "a filter has its pages");

/* The executive's own calls, whatever their arguments are. */
static const u16 own_calls[] = {
    __NR_mmap,         __NR_munmap,         __NR_mprotect,   __NR_madvise,       __NR_close,
    __NR_read,         __NR_pread64,        __NR_pwrite64,   __NR_fstat,         __NR_fstatfs,
    __NR_statx,        __NR_faccessat2,     __NR_readlink,   __NR_futex,         __NR_sched_yield,
    __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_sigaltstack, __NR_rt_sigreturn, __NR_rt_tgsigqueueinfo,
    __NR_gettid,       __NR_getpid,         __NR_geteuid,    __NR_getegid,       __NR_clock_gettime,
    __NR_clock_nanosleep, __NR_restart_syscall, __NR_timer_create, __NR_timer_settime, __NR_timer_delete,
    __NR_memfd_create, __NR_kill,           __NR_exit,       __NR_brk,
};

/* And those of which one argument (the low half of it) has this value. */
static const struct {
    u16 number, argument;
    u32 value;
} own_calls_with[] = {
    {__NR_open, 1, O_RDONLY | O_CLOEXEC},
    {__NR_openat, 2, O_RDONLY | O_CLOEXEC},
    {__NR_openat, 2, O_RDONLY | O_CLOEXEC | O_NOFOLLOW},
    {__NR_write, 0, 2}, /* last words */
    {__NR_exit_group, 0, 120},
    {__NR_tkill, 1, 0}, /* whether a thread is there */
    {__NR_fcntl, 1, F_GETFD},
    {__NR_fcntl, 1, F_SETFD},
    {__NR_fcntl, 1, F_DUPFD_CLOEXEC},
    {__NR_fcntl, 1, F_SETLK},
    {__NR_fcntl, 1, F_GETLK},
    {__NR_process_vm_readv, 2, 1},
    {__NR_process_vm_writev, 2, 1},
    {__NR_execveat, 4, AT_EMPTY_PATH},
    {__NR_prctl, 0, PR_SET_SYSCALL_USER_DISPATCH},
    {__NR_prctl, 0, PR_SET_NAME},
    {__NR_prctl, 0, PR_SET_MM},
    {__NR_shmctl, 1, 2 /* IPC_STAT */},
    {__NR_setitimer, 0, 0 /* ITIMER_REAL */},
    {__NR_getrandom, 2, 1 /* GRND_NONBLOCK */},
    {__NR_personality, 0, 0xffffffff},
};

/* Where the prefix compares the instruction pointer, and where it ends. */
#define CHECK (1 + array_length(own_calls) + 4 * array_length(own_calls_with) + 1)
#define PREFIX (CHECK + 8)
_Static_assert(CHECK < 256, "a jump goes over 255 instructions");

static u32 filter_limit HOT; /* places at and above were never used */

static struct filter *filter_at(u32 index) {
    return (struct filter *)(FILTERS_ADDRESS + index * FILTER_PAGES * 4096);
}

static struct filter *new_filter(void) {
    for (u32 i = 0; i < MAX_FILTERS; i++) {
        u32 none = 0;
        struct filter *filter = filter_at(i);
        if (i >= filter_limit && !map_own((u64)filter, FILTER_PAGES * 4096)) return NULL;
        if (!filter->users &&
            __atomic_compare_exchange_n(&filter->users, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            if (filter_limit <= i) filter_limit = i + 1;
            filter->previous = NULL;
            return filter;
        }
    }
    return NULL;
}

struct filter *share_filters(struct filter *filter) {
    if (filter) __atomic_add_fetch(&filter->users, 1, __ATOMIC_ACQ_REL);
    return filter;
}

void drop_filters(struct filter *filter) {
    while (filter) {
        struct filter *previous = filter->previous;
        if (__atomic_sub_fetch(&filter->users, 1, __ATOMIC_ACQ_REL)) return;
        filter = previous;
    }
}

static struct sock_filter load(u32 at) { return (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at); }

static struct sock_filter jump_if(u32 value, u32 if_so, u32 if_not) {
    return (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, if_so, if_not);
}

/* The accumulator is zero behind it, as it is at the begin of a program. */
static void put_prefix(struct sock_filter *code) {
    u32 at = 0, number = offset_of(struct seccomp_data, nr);
    u32 place = offset_of(struct seccomp_data, instruction_pointer);
    u64 own = (u64)own_called;
    code[at++] = load(number);
    for (u32 i = 0; i < array_length(own_calls); i++, at++) code[at] = jump_if(own_calls[i], CHECK - at - 1, 0);
    for (u32 i = 0; i < array_length(own_calls_with); i++) {
        code[at++] = jump_if(own_calls_with[i].number, 0, 3);
        code[at++] = load(offset_of(struct seccomp_data, args) + 8 * own_calls_with[i].argument);
        code[at] = jump_if(own_calls_with[i].value, CHECK - at - 1, 0), at++;
        code[at++] = load(number);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, PREFIX - CHECK - 1);
    code[at++] = load(place);
    code[at] = jump_if((u32)own, 0, PREFIX - at - 2), at++;
    code[at++] = load(place + 4);
    code[at] = jump_if(own >> 32, 0, PREFIX - at - 2), at++;
    code[at++] = load(offset_of(struct seccomp_data, arch));
    code[at] = jump_if(AUDIT_ARCH_X86_64, 0, PREFIX - at - 2), at++;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_IMM, 0);
}

/*
 * Runs the guest's program, which the kernel has accepted. 0: the call is not let pass, or, with
 * `depends`, that depends on more than its number.
 */
static int lets_pass(const struct filter *filter, const struct seccomp_data *call, int depends) {
    const struct sock_filter *at = filter->code + PREFIX, *end = filter->code + filter->count;
    u32 a = 0, x = 0, memory[BPF_MEMWORDS] = {0};
    for (; at < end; at++) {
        u32 k = at->k, operand = BPF_SRC(at->code) == BPF_X ? x : k, is_true;
        switch (BPF_CLASS(at->code)) {
        case BPF_LD:
        case BPF_LDX: {
            u32 value = k;
            if (BPF_MODE(at->code) == BPF_ABS) {
                if (k > sizeof *call - 4 || (depends && k >= offset_of(struct seccomp_data, instruction_pointer)))
                    return 0;
                memcpy(&value, (const u8 *)call + k, 4);
            } else if (BPF_MODE(at->code) == BPF_MEM) {
                value = memory[k % BPF_MEMWORDS];
            } else if (BPF_MODE(at->code) == BPF_LEN) {
                value = sizeof *call;
            }
            if (BPF_CLASS(at->code) == BPF_LD) a = value;
            else x = value;
            break;
        }
        case BPF_ST: memory[k % BPF_MEMWORDS] = a; break;
        case BPF_STX: memory[k % BPF_MEMWORDS] = x; break;
        case BPF_MISC:
            if (BPF_MISCOP(at->code) == BPF_TAX) x = a;
            else a = x;
            break;
        case BPF_ALU:
            switch (BPF_OP(at->code)) {
            case BPF_ADD: a += operand; break;
            case BPF_SUB: a -= operand; break;
            case BPF_MUL: a *= operand; break;
            case BPF_DIV:
                if (!operand) return 0;
                a /= operand;
                break;
            case BPF_AND: a &= operand; break;
            case BPF_OR: a |= operand; break;
            case BPF_XOR: a ^= operand; break;
            case BPF_LSH: a <<= operand & 31; break;
            case BPF_RSH: a >>= operand & 31; break;
            case BPF_NEG: a = -a; break;
            default: return 0;
            }
            break;
        case BPF_JMP:
            if (BPF_OP(at->code) == BPF_JA) {
                if (k >= (u64)(end - at)) return 0;
                at += k;
                break;
            }
            switch (BPF_OP(at->code)) {
            case BPF_JEQ: is_true = a == operand; break;
            case BPF_JGT: is_true = a > operand; break;
            case BPF_JGE: is_true = a >= operand; break;
            case BPF_JSET: is_true = (a & operand) != 0; break;
            default: return 0;
            }
            at += is_true ? at->jt : at->jf;
            break;
        case BPF_RET: {
            u32 action = (BPF_RVAL(at->code) == BPF_A ? a : k) & SECCOMP_RET_ACTION_FULL;
            return action == SECCOMP_RET_ALLOW || action == SECCOMP_RET_LOG;
        }
        }
    }
    return 0;
}

/* What is known of a filter whose program is there. */
static void prepare(struct filter *filter) {
    struct seccomp_data call = {.arch = AUDIT_ARCH_X86_64};
    memset(filter->passes, 0, sizeof filter->passes);
    for (u32 number = 0; number < MAX_CALLS; number++) {
        call.nr = number;
        if (lets_pass(filter, &call, 1)) filter->passes[number / 64] |= 1ul << (number % 64);
    }
}

int filters_pass(struct block *block) {
    u64 number = block->call[0];
    struct seccomp_data call = {(i32)number, AUDIT_ARCH_X86_64, block->stub->back,
                                {block->rdi, block->rsi, block->rdx, block->r10, block->r8, block->r9}};
    for (const struct filter *filter = block->filters; filter; filter = filter->previous) {
        if (number < MAX_CALLS && (filter->passes[number / 64] >> (number % 64) & 1)) continue;
        if (!lets_pass(filter, &call, 0)) return 0;
    }
    return 1;
}

static int refuse_filter(struct block *block, u32 reason) {
    count_stat(reason);
    block->rax = -EINVAL;
    return ENTER_DONE;
}

static int reads_instruction_pointer(const struct filter *filter) {
    u32 place = offset_of(struct seccomp_data, instruction_pointer);
    for (u32 i = PREFIX; i < filter->count; i++)
        if (filter->code[i].code == (BPF_LD | BPF_W | BPF_ABS) && (filter->code[i].k & ~7u) == place) return 1;
    return 0;
}

#define KNOWN_FLAGS                                                                                                    \
    (SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_LOG | SECCOMP_FILTER_FLAG_SPEC_ALLOW |                            \
     SECCOMP_FILTER_FLAG_TSYNC_ESRCH)

/* Whether the call sets strict mode (1) or a filter (2). */
static u32 mode_of(const u64 *call) {
    if (call[0] == __NR_prctl) return call[1] == PR_SET_SECCOMP && call[2] <= 2 ? call[2] : 0;
    if (call[1] == SECCOMP_SET_MODE_FILTER) return 2;
    /* libseccomp tries it with a flag, which the kernel rejects. */
    return call[1] == SECCOMP_SET_MODE_STRICT && !call[2] && !call[3];
}

int set_filter(struct block *block) {
    u32 mode = mode_of(block->call);
    u64 flags = block->call[0] == __NR_prctl ? 0 : block->call[2];
    struct sock_fprog given;
    if (!mode) return ENTER_KERNEL;
    if (mode == 1) return refuse_filter(block, STAT_FILTERS_STRICT);
    /* What the kernel rejects it rejects itself: so flags are tried without a program. */
    if (copy_in(&given, block->call[3], sizeof given) || !given.len || given.len > BPF_MAXINSNS) return ENTER_KERNEL;
    if (flags & ~(u64)KNOWN_FLAGS) return refuse_filter(block, STAT_FILTERS_LISTENER);
    if (given.len + PREFIX > BPF_MAXINSNS) return refuse_filter(block, STAT_FILTERS_LONG);
    struct filter *filter = block->fresh ? block->fresh : new_filter();
    if (!filter) {
        block->rax = -ENOMEM;
        return ENTER_DONE;
    }
    block->fresh = filter;
    put_prefix(filter->code);
    filter->count = PREFIX + given.len;
    if (copy_in(filter->code + PREFIX, (u64)given.filter, given.len * sizeof *given.filter)) return ENTER_KERNEL;
    if (reads_instruction_pointer(filter)) return refuse_filter(block, STAT_FILTERS_ADDRESS);
    struct sock_fprog *ours = (struct sock_fprog *)block->scratch;
    *ours = (struct sock_fprog){filter->count, filter->code};
    block->call[3] = (u64)ours;
    return ENTER_KERNEL;
}

/* The thread has the other's filters from now on; its own are among them. */
static void take_filters(struct block *thread, struct block *from) {
    struct filter *old = thread->filters;
    thread->filters = share_filters(from->filters);
    drop_filters(old);
}

void filter_was_set(struct block *block) {
    struct filter *filter = block->fresh;
    if (!filter || !mode_of(block->call) || block->call[3] != (u64)block->scratch) return;
    block->fresh = NULL;
    if (block->rax) return drop_filters(filter);
    prepare(filter);
    filter->previous = block->filters;
    block->filters = filter;
    if (block->call[0] != __NR_seccomp || !(block->call[2] & SECCOMP_FILTER_FLAG_TSYNC)) return;
    lock_sites();
    each_thread(block, take_filters);
    unlock_sites();
}

i64 save_filters(struct block *block) {
    u64 at = 0;
    i64 file = SYS2(__NR_memfd_create, "hijack-filters", 1 /* MFD_CLOEXEC */);
    for (const struct filter *filter = block->filters; filter && !is_error(file); filter = filter->previous) {
        u64 bytes = filter->count * sizeof *filter->code;
        i64 result = SYS4(__NR_pwrite64, file, &filter->count, sizeof filter->count, at);
        if (result == sizeof filter->count)
            result = SYS4(__NR_pwrite64, file, filter->code, bytes, at + sizeof filter->count);
        if (result != (i64)bytes) {
            SYS1(__NR_close, file);
            return is_error(result) ? result : -ENOMEM;
        }
        at += sizeof filter->count + bytes;
    }
    return file;
}

void load_filters(struct block *block, i64 file) {
    struct filter **last = &block->filters;
    u32 count;
    for (u64 at = 0; SYS4(__NR_pread64, file, &count, sizeof count, at) == sizeof count;) {
        struct filter *filter = new_filter();
        u64 bytes = count * sizeof *filter->code;
        at += sizeof count;
        if (!filter || count <= PREFIX || count > BPF_MAXINSNS ||
            SYS4(__NR_pread64, file, filter->code, bytes, at) != (i64)bytes)
            die("the seccomp filters of this program are not known any more", "", 0);
        at += bytes;
        filter->count = count;
        prepare(filter);
        *last = filter;
        last = &filter->previous;
    }
    SYS1(__NR_close, file);
}
