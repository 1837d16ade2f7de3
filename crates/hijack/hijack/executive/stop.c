/*
 * Stop, resume and step by the host: a thread shows its registers in its inspection, sleeps until
 * the host says otherwise, and takes them back as the host left them.
 */
#include "block.h"

#define SLEEP_NS 100000000

/* In the order of `struct orbit_registers`. */
static const u16 places[18] = {
    offset_of(struct context, rax), offset_of(struct context, rbx), offset_of(struct context, rdx),
    offset_of(struct context, rsi), offset_of(struct context, rdi), offset_of(struct context, rbp),
    offset_of(struct context, rsp), offset_of(struct context, r8),  offset_of(struct context, r9),
    offset_of(struct context, r10), offset_of(struct context, r12), offset_of(struct context, r13),
    offset_of(struct context, r14), offset_of(struct context, r15), offset_of(struct context, rip),
    offset_of(struct context, rcx), offset_of(struct context, r11), offset_of(struct context, rflags),
};

void copy_registers_out(const struct context *context, u64 *registers) {
    for (u32 i = 0; i < array_length(places); i++) registers[i] = *(const u64 *)((const u8 *)context + places[i]);
}

/* Of the flags only those of arithmetic. */
void copy_registers_in(struct context *context, const u64 *registers) {
    u64 flags = context->rflags;
    for (u32 i = 0; i < array_length(places); i++) *(u64 *)((u8 *)context + places[i]) = registers[i];
    context->rflags = (flags & ~0x8d5ul) | (context->rflags & 0x8d5ul);
}

void stop_thread(struct block *block, struct context *context) {
    if (!block->slot) return;
    volatile struct inspection *inspection = &extension->inspections[block->slot - shared->slots];
    if (inspection->command == COMMAND_RUN) return;
    context->rflags &= ~TRAP_FLAG;
    copy_registers_out(context, (u64 *)inspection->registers);
    inspection->command = COMMAND_STOP;
    __atomic_store_n(&inspection->state, INSPECT_STOPPED, __ATOMIC_SEQ_CST);
    SYS3(__NR_futex, &inspection->state, 1 /* FUTEX_WAKE, shared */, 0x7fffffff);
    u32 command;
    while ((command = __atomic_load_n(&inspection->command, __ATOMIC_ACQUIRE)) == COMMAND_STOP) {
        u64 wait[2] = {0, SLEEP_NS};
        SYS4(__NR_futex, &inspection->command, 0 /* FUTEX_WAIT, shared */, COMMAND_STOP, wait);
        /* Without its host nobody would wake it. */
        if (!host_is_alive()) break;
    }
    copy_registers_in(context, (u64 *)inspection->registers);
    block->stepping = command == COMMAND_STEP;
    if (block->stepping) {
        /* The trap after each instruction comes to `on_signal`. */
        set_kernel_action(SIGTRAP, (u64)on_signal, SA_SIGINFO | SA_ONSTACK, ALL_SIGNALS);
        context->mask &= ~bit(SIGTRAP);
        context->rflags |= TRAP_FLAG;
    }
    __atomic_store_n(&inspection->state, INSPECT_RUNS, __ATOMIC_SEQ_CST);
}
