/* The way of one call through the executive: count, trace, policy, the executive's own part, the
 * kernel. */
#include "block.h"

u32 options HOT;

/* The call's number and arguments as the kernel is to get them. */
static void set_call(struct block *block) {
    block->call[0] = block->rax;
    block->call[1] = block->rdi;
    block->call[2] = block->rsi;
    block->call[3] = block->rdx;
    block->call[4] = block->r10;
    block->call[5] = block->r8;
    block->call[6] = block->r9;
}

/* Called by `slow_entry` with the guest's registers saved. Returns ENTER_*. */
int enter(struct block *block) {
    u64 number = block->rax;
    block->rip = block->stub->back;
    block->undo_count = 0;
    set_call(block);
    if (number >= MAX_CALLS) return ENTER_KERNEL;
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
