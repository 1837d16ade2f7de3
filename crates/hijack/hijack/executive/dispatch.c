/* The way of one call through the executive: count, trace, policy, the executive's own part, the
 * kernel. */
#include "block.h"

u32 options HOT;

/* What the kernel takes of an argument. */
static u64 narrow(u64 number, u32 index, u64 value) {
    struct width width = call_widths[number];
    if (width.words >> index & 1) return (u32)value;
    return width.halves >> index & 1 ? (u16)value : value;
}

static void read_arguments(const struct block *block, u64 arguments[6]) {
    arguments[0] = block->rdi;
    arguments[1] = block->rsi;
    arguments[2] = block->rdx;
    arguments[3] = block->r10;
    arguments[4] = block->r8;
    arguments[5] = block->r9;
}

/* The call's number and arguments as the kernel is to get them. */
static void set_call(struct block *block) {
    block->call[0] = (u64)(i64)(i32)block->rax; /* the kernel takes an int */
    read_arguments(block, &block->call[1]);
    block->denied = 0;
    for (u32 i = 0; i < MAX_JUDGED; i++) block->judged[i].argument = 0;
    if (block->call[0] >= MAX_CALLS) return;
    /* What the kernel does not see decides nothing: rules and checks get its number, too. */
    for (u32 i = 0; i < 6; i++) block->call[1 + i] = narrow(block->call[0], i, block->call[1 + i]);
}

/* A filter of the guest's sees whole registers: arguments that nobody altered are those again. */
static void widen(struct block *block) {
    u64 arguments[6];
    read_arguments(block, arguments);
    for (u32 i = 0; i < 6; i++)
        if (block->call[1 + i] == narrow(block->call[0], i, arguments[i])) block->call[1 + i] = arguments[i];
}

/* The filters of the guest's own do not let the call pass: the kernel denies it in their way. */
static int deny(struct block *block) {
    block->denied = 1;
    read_arguments(block, &block->call[1]);
    return ENTER_KERNEL;
}

/* Without the executive the vdso answers these, which no filter sees. */
static int is_of_vdso(u64 number) {
    return (options & OPTION_VIRTUAL_TIME) &&
           (number == __NR_clock_gettime || number == __NR_gettimeofday || number == __NR_time);
}

/* Called by `slow_entry` with the guest's registers saved. Returns ENTER_*. */
int enter(struct block *block) {
    block->rip = block->stub->back;
    block->undo_count = 0;
    set_call(block);
    u64 number = block->call[0];
    if (number >= MAX_CALLS) {
        if (block->filters && !filters_pass(block)) return deny(block);
        /* There are none, but for those of the x32 interface, which no rule would see. */
        if (number >> 30 & 1) count_stat(STAT_COMPAT);
        block->rax = -ENOSYS;
        return ENTER_DONE;
    }
    block->counts[number]++;
    u8 flags = call_flags[number];
    if (flags & FLAG_TRACE) trace_entry(block);
    /* Before rules, which may have the kernel read a copy of ours. */
    int is_wild = (flags & FLAG_POINTERS) && points_at_executive(block);
    int verdict = flags & FLAG_POLICY ? policy(block) : ENTER_KERNEL;
    if (verdict == ENTER_KERNEL && (flags & FLAG_OBJECT)) verdict = object_call(block);
    if (verdict == ENTER_KERNEL && (is_wild || (flags & FLAG_SPECIAL))) {
        if (block->filters && !is_of_vdso(number) && !filters_pass(block)) return deny(block);
        verdict = is_wild ? refuse(block, -EFAULT) : special(block);
    }
    if (verdict == ENTER_KERNEL && block->filters) widen(block);
    if (verdict == ENTER_DONE && (flags & FLAG_TRACE)) trace_exit(block);
    return verdict;
}

/* Called when the kernel has made the call; `block->rax` is its result. */
void after(struct block *block) {
    u64 number = block->call[0];
    if (number >= MAX_CALLS) return;
    for (u32 i = 0; i < 6 && block->filters; i++) block->call[1 + i] = narrow(number, i, block->call[1 + i]);
    u8 flags = call_flags[number];
    if ((flags & FLAG_SPECIAL) && !block->denied) special_after(block);
    if (flags & FLAG_OBJECT) object_result(block);
    if (flags & FLAG_TRACE) trace_exit(block);
}

/* Called in its place when a filter of the guest's own sent SIGSYS, which comes next. */
void trapped(struct block *block) {
    if (block->call[0] < MAX_CALLS && (call_flags[block->call[0]] & FLAG_TRACE)) trace_exit(block);
}
