/* The way of one call through the executive: count, trace, policy, the executive's own part, the
 * kernel. */
#include "block.h"

u32 options HOT;

/* The call's number and arguments as the kernel is to get them. */
static void set_call(struct block *block) {
    block->call[0] = (u64)(i64)(i32)block->rax; /* the kernel takes an int */
    block->call[1] = block->rdi;
    block->call[2] = block->rsi;
    block->call[3] = block->rdx;
    block->call[4] = block->r10;
    block->call[5] = block->r8;
    block->call[6] = block->r9;
    if (block->call[0] >= MAX_CALLS) return;
    /* What the kernel does not see decides nothing: rules and checks get its number, too. */
    struct width width = call_widths[block->call[0]];
    for (u32 i = 0; width.words >> i; i++)
        if (width.words >> i & 1) block->call[1 + i] = (u32)block->call[1 + i];
    for (u32 i = 0; width.halves >> i; i++)
        if (width.halves >> i & 1) block->call[1 + i] = (u16)block->call[1 + i];
}

/* Called by `slow_entry` with the guest's registers saved. Returns ENTER_*. */
int enter(struct block *block) {
    block->rip = block->stub->back;
    block->undo_count = 0;
    set_call(block);
    u64 number = block->call[0];
    if (number >= MAX_CALLS) {
        /* There are none, but for those of the x32 interface, which no rule would see. */
        if (number >> 30 & 1) count_stat(STAT_COMPAT);
        block->rax = -ENOSYS;
        return ENTER_DONE;
    }
    block->counts[number]++;
    u8 flags = call_flags[number];
    if (flags & FLAG_TRACE) trace_entry(block);
    int verdict = flags & FLAG_POLICY ? policy(block) : ENTER_KERNEL;
    if (verdict == ENTER_KERNEL && (flags & FLAG_OBJECT)) verdict = object_call(block);
    if (verdict == ENTER_KERNEL && (flags & FLAG_SPECIAL)) verdict = special(block);
    if (verdict == ENTER_DONE && (flags & FLAG_TRACE)) trace_exit(block);
    return verdict;
}

/* Called when the kernel has made the call; `block->rax` is its result. */
void after(struct block *block) {
    if (block->call[0] >= MAX_CALLS) return;
    u8 flags = call_flags[block->call[0]];
    if (flags & FLAG_SPECIAL) special_after(block);
    if (flags & FLAG_OBJECT) object_result(block);
    if (flags & FLAG_TRACE) trace_exit(block);
}
