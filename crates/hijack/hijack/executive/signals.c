/*
 * Virtual signals. The kernel's handler is always `on_signal`, on a stack of our own, with all
 * signals blocked; the guest's actions are in its action table. A signal that may be delivered at
 * once is turned into the frame that the kernel would have made on the guest's stack. One that
 * arrives in the executive is deferred to its exit.
 */
#include "block.h"

#define VECTOR_MAGIC 0x46505853u
#define ARCH_X86_64 0xc000003e /* as the kernel's si_arch names it */
#define VECTOR_MAGIC_AT 464    /* in the legacy area: magic, then the size of the whole state */

u64 vector_bytes(u64 state) {
    if (!state) return 0;
    const u32 *software = (const u32 *)(state + VECTOR_MAGIC_AT);
    return software[0] == VECTOR_MAGIC ? software[1] : 512;
}

i64 set_kernel_action(u32 signal, u64 handler, u64 flags, u64 mask) {
    struct action action = {handler, flags | SA_RESTORER, (u64)restorer, mask};
    return SYS4(__NR_rt_sigaction, signal, &action, NULL, 8);
}

/* Restarted: ticks and stops come by SIGSYS too, and should end no call that can continue. */
void catch_dispatch(void) {
    set_kernel_action(SIGSYS, (u64)on_signal, SA_SIGINFO | SA_ONSTACK | SA_RESTART, ALL_SIGNALS);
}

void catch_fault(u32 signal) { set_kernel_action(signal, (u64)on_signal, SA_SIGINFO | SA_ONSTACK, ALL_SIGNALS); }

void catch_faults(void) {
    for (u32 signal = 1; signal <= SIGNAL_LIMIT; signal++)
        if (IS_FAULT(signal)) catch_fault(signal);
}

static struct alternate_stack own_stack(struct block *block) {
    return (struct alternate_stack){(u64)block->signal_stack, 0, 0, STACK_BYTES};
}

static int is_on_alternate(struct block *block, u64 sp) {
    return block->alternate.size && sp - block->alternate.base - 1 < block->alternate.size;
}

/* A seccomp filter of the guest's own sent it in place of a call. */
static int is_trap_of_filter(int signal, const struct signal_info *info) {
    return signal == SIGSYS && info->code == SYS_SECCOMP;
}

/* The guest's action is the default one: let the kernel perform it once this frame is left. */
static void perform_default(u32 signal, struct frame *frame) {
    set_kernel_action(signal, HANDLER_DEFAULT, 0, 0);
    /* A fault happens again by itself; anything else has to be sent again. */
    int is_fault = frame->info.code > 0 && IS_FAULT(signal);
    if (!is_fault) SYS4(__NR_rt_tgsigqueueinfo, SYS0(__NR_getpid), SYS0(__NR_gettid), signal, &frame->info);
    frame->context.mask &= ~bit(signal);
}

/*
 * `frame` holds the guest's registers and mask at the signal. Turns it into the start of the
 * guest's handler, with the frame for it on the guest's stack.
 */
static void deliver(struct block *block, u32 signal, struct frame *frame) {
    struct context *context = &frame->context;
    struct action action = block->table->actions[signal];
    if (options & OPTION_TRACE) trace_signal(block, &frame->info);
    /* What the kernel lets nobody ignore, or block: faults, and traps of filters. */
    int is_trap = is_trap_of_filter(signal, &frame->info);
    int is_forced = is_trap || (IS_FAULT(signal) && frame->info.code > 0);
    if (is_trap) frame->info.value[0] = context->rip;
    if (action.handler == HANDLER_IGNORE && !is_forced) return;
    if (action.handler <= HANDLER_IGNORE || (is_trap && block->sys_blocked)) return perform_default(signal, frame);
    count_stat(STAT_DELIVERED);
    if (action.flags & SA_RESETHAND) {
        block->table->actions[signal].handler = HANDLER_DEFAULT;
        if (signal != SIGSYS && !(has_object && IS_FAULT(signal))) set_kernel_action(signal, HANDLER_DEFAULT, 0, 0);
    }
    u64 sp = context->rsp;
    int on_alternate = is_on_alternate(block, sp);
    int switches = (action.flags & SA_ONSTACK) && block->alternate.size && !on_alternate;
    sp = switches ? block->alternate.base + block->alternate.size : sp - 128;
    u64 bytes = vector_bytes(context->vector_state);
    u64 vector = (sp - bytes) & ~63ul;
    struct frame *copy = (struct frame *)(((vector - sizeof *copy) & ~15ul) - 8);
    memcpy((void *)vector, (void *)context->vector_state, bytes);
    memcpy(copy, frame, sizeof *copy);
    copy->context.vector_state = bytes ? vector : 0;
    copy->return_address = action.restorer;
    copy->context.stack = block->alternate;
    if (!block->alternate.size) copy->context.stack.flags |= SS_DISABLE;
    if (on_alternate) copy->context.stack.flags |= SS_ONSTACK;
    if (block->sys_blocked) copy->context.mask |= bit(SIGSYS);
    if (block->alternate.flags & SS_AUTODISARM) block->alternate = (struct alternate_stack){0, 0, 0, 0};

    context->rip = action.handler;
    context->rdi = signal;
    context->rsi = (u64)&copy->info;
    context->rdx = (u64)&copy->context;
    context->rax = 0;
    context->rsp = (u64)copy;
    context->rflags &= ~0x500ul; /* direction and trap flag */
    context->mask |= action.mask | (action.flags & SA_NODEFER ? 0 : bit(signal));
    if (context->mask & bit(SIGSYS)) block->sys_blocked = 1;
    context->mask &= ~bit(SIGSYS);
    context->vector_state = 0;
}

/* What stays open while a signal is deferred: without it a fault of the policy object, or its
 * limit, would kill. */
static u64 open_in_executive(struct block *block) {
    return (has_object ? FAULT_MASK | bit(SIGSYS) : 0) | (block->stepping ? bit(SIGTRAP) : 0);
}

/* Keeps the signal until the thread leaves the executive, which continues with all signals
 * blocked. */
static void defer(struct block *block, u32 signal, struct frame *frame) {
    if (block->pending) {
        /* One is kept already. Events come again; a signal that another process sent waits in
         * the kernel. */
        if (signal > SIGNAL_LIMIT) return;
        frame->context.mask |= bit(signal);
        SYS4(__NR_rt_tgsigqueueinfo, block->pid, block->tid, signal, &frame->info);
        return;
    }
    count_stat(STAT_DEFERRED);
    struct frame *kept = (struct frame *)(block->deferred + 56);
    u64 vector = ((u64)(kept + 1) + 63) & ~63ul;
    u64 bytes = vector_bytes(frame->context.vector_state);
    if (vector + bytes > (u64)block->deferred + FRAME_BYTES)
        die("the vector state does not fit the limit of 16 KiB", "", 0);
    memcpy(kept, frame, sizeof *kept);
    memcpy((void *)vector, (void *)frame->context.vector_state, bytes);
    kept->context.vector_state = bytes ? vector : 0;
    block->deferred_signal = signal;
    block->pending = 1;
    frame->context.mask = ALL_SIGNALS & ~open_in_executive(block);
}

/* Something of the host's or of a timer, at an edge of guest code. */
static void handle_event(struct block *block, u32 event, struct context *context) {
    if (event == EVENT_STOP || event == EVENT_STEP) return stop_thread(block, context);
    object_timer(block, context);
    context_tick(block, context);
}

/* Called by `leave`: the guest continues in its handler, or where the call ends. */
__attribute__((noreturn)) void deliver_deferred(struct block *block) {
    struct frame *frame = (struct frame *)(block->deferred + 56);
    struct context *context = &frame->context;
    context->rax = block->rax;
    context->rbx = block->rbx;
    context->rdx = block->rdx;
    context->rsi = block->rsi;
    context->rdi = block->rdi;
    context->rbp = block->rbp;
    context->rsp = block->rsp;
    context->r8 = block->r8;
    context->r9 = block->r9;
    context->r10 = block->r10;
    context->r12 = block->r12;
    context->r13 = block->r13;
    context->r14 = block->r14;
    context->r15 = block->r15;
    context->rip = block->rip;
    context->rcx = block->rip;
    context->r11 = 0; /* as `leave` has it */
    context->rflags = 0x202;
    context->mask &= ~bit(SIGSYS);
    block->pending = 0;
    if (block->deferred_signal > SIGNAL_LIMIT) handle_event(block, block->deferred_signal, context);
    else deliver(block, block->deferred_signal, frame);
    context->stack = own_stack(block);
    return_through(frame);
}

/* The call is not begun: the guest makes it after its handler. */
void abort_call(struct block *block) {
    if (block->restarted) {
        block->rax = -512; /* ERESTARTSYS, as a tracer would see it */
        trace_exit(block);
    } else {
        if (block->call[0] < MAX_CALLS) block->counts[block->call[0]]--;
        policy_undo(block);
        trace_abort(block);
    }
    block->restarted = 0;
    block->rax = block->call[0];
    block->rip = block->stub->site;
}

#define IN_EXECUTIVE (~0ul) /* no address of an instruction; 0 is one, of a guest that calls a null pointer */

/* Moves an address in a stub to the edge of the site that means the same; IN_EXECUTIVE if there
 * is none. */
static u64 edge(u64 rip, u64 r11) {
    struct stub *stub = stub_at(rip);
    if (stub) return (rip & 127) > STUB_SYSCALL && (rip & 127) < STUB_ENTRY ? stub->back : stub->site;
    if (rip >= (u64)slow_entry && rip <= (u64)slow_saved) return ((struct stub *)r11)->site;
    if (rip >= (u64)executive_start && rip < (u64)executive_end) return IN_EXECUTIVE;
    u64 site = edge_of_trampoline(rip);
    return site ? site : rip;
}

#define EVENT_NONE (~0u) /* nothing is to be done */

/* Whether the policy object's function, which runs, must be left. */
static int leaves_object(struct block *block, int signal, const struct signal_info *info) {
    if (IS_FAULT(signal) && info->code > 0) block->object_failed = OBJECT_FAULTED;
    else if (signal == SIGSYS && info->code == SI_QUEUE && info->value[1] == VALUE_LIMIT)
        block->object_failed = OBJECT_LOOPED;
    else return 0;
    return 1;
}

/*
 * The kernel drops the SIGSYS of a dispatched call if another SIGSYS is pending already. Then the
 * thread stands behind the syscall instruction with the registers that it leaves, and no call was
 * made.
 */
static int lost_dispatch(const struct context *context) {
    u16 instruction;
    /* The executive's calls are never dispatched: behind one, in a stub too, the call was made. */
    if (context->rip >= (u64)executive_start && context->rip < (u64)executive_end) return 0;
    if (context->rcx != context->rip || !(context->r11 & 2)) return 0;
    return !copy_in(&instruction, context->rip - 2, 2) && instruction == 0x050f;
}

/* 0: a signal for the guest. */
static u32 event_of(struct block *block, int signal, const struct signal_info *info, struct context *context) {
    if (signal == SIGTRAP && block->stepping) {
        /* Instructions of the executive and its trampolines are no steps of the guest. */
        int is_own = context->rip >= (u64)executive_start && context->rip < (u64)executive_end;
        return is_own || edge_of_trampoline(context->rip) ? EVENT_NONE : EVENT_STEP;
    }
    if (signal != SIGSYS) return 0;
    if (info->code == SI_TIMER && info->value[1] == VALUE_TICK) return EVENT_TICK;
    if (info->code != SI_QUEUE) return 0;
    if (info->value[1] == VALUE_STOP) return EVENT_STOP;
    return info->value[1] == VALUE_LIMIT ? EVENT_NONE : 0;
}

void on_signal(int signal, struct signal_info *info, struct context *context) {
    struct block *block = this_block();
    struct frame *frame = (struct frame *)((u64)context - offset_of(struct frame, context));
    u64 rip = context->rip;
    if (signal == SIGSYS && info->code == SYS_USER_DISPATCH) {
        count_stat(STAT_TRAPS);
        /* Not by the bytes at the site: another thread may have rewritten them since. */
        if (info->value[1] >> 32 == ARCH_X86_64) {
            struct stub *stub = stub_of_site(rip - 2, context->rax);
            int is_spare = !stub_at((u64)stub);
            if (is_spare) context->r11 = (u64)stub;
            context->rip = is_spare ? (u64)slow_save : (u64)stub->code + STUB_ENTRY;
        } else {
            /* int 0x80 and sysenter: the 32-bit interface of a 64-bit program is not offered. */
            count_stat(STAT_COMPAT);
            context->rax = -ENOSYS;
        }
        return;
    }
    if (signal == SIGSYS && lost_dispatch(context)) context->rip = rip -= 2;
    if (block->object_sp && leaves_object(block, signal, info)) {
        context->rip = (u64)object_escape;
        return;
    }
    u32 event = event_of(block, signal, info, context);
    if (event == EVENT_NONE) return;
    u64 at = edge(rip, context->r11);
    if (at != IN_EXECUTIVE) {
        context->rip = at;
        if (event) handle_event(block, event, context);
        else deliver(block, signal, frame);
        context->stack = own_stack(block);
        return;
    }
    if (IS_FAULT(signal) && info->code > 0) {
        char address[32] = "0x";
        for (i32 i = 0; i < 16; i++) address[2 + i] = "0123456789abcdef"[rip >> (60 - 4 * i) & 15];
        address[18] = 0;
        die("fault in the executive at ", address, 0);
    }
    if (rip > (u64)leave && rip < (u64)leave_end) {
        context->rip = (u64)leave;
    } else if (rip >= (u64)kernel_check && rip <= (u64)kernel_call) {
        block->restarted = rip == (u64)kernel_call;
        context->rip = (u64)kernel_abort;
    } else if (rip >= (u64)sigreturn_begin && rip <= (u64)sigreturn_call) {
        context->rip = (u64)kernel_abort;
    }
    if (rip == (u64)kernel_made && is_trap_of_filter(signal, info)) context->rip = (u64)kernel_trapped;
    if (rip >= (u64)wait_check && rip <= (u64)wait_call) context->rip = (u64)wait_ended;
    if (rip == (u64)own_call && *(const u64 *)context->rsp == (u64)wait_called) {
        context->rip = (u64)wait_ended;
        context->rsp += 8;
    }
    if (rip > (u64)gate_check && rip < (u64)gate_end) context->rip = (u64)gate_check;
    defer(block, event ? event : (u32)signal, frame);
}

i64 do_sigaction(struct block *block) {
    u32 signal = block->call[1];
    struct action fresh;
    if (block->call[4] != 8 || signal < 1 || signal > SIGNAL_LIMIT) return -EINVAL;
    if (block->call[2] && copy_in(&fresh, block->call[2], sizeof fresh)) return -EFAULT;
    struct action old = block->table->actions[signal];
    if (block->call[2]) {
        if (signal == SIGKILL || signal == SIGSTOP) return -EINVAL;
        fresh.mask &= ~(bit(SIGKILL) | bit(SIGSTOP));
        /* First the table: the signal may come at once. Blocked until both agree, unless they
         * hold no handler. */
        u64 all = ALL_SIGNALS, before;
        SYS4(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before, 8);
        block->table->actions[signal] = fresh;
        i64 result = 0;
        if (signal != SIGSYS) {
            if (has_object && IS_FAULT(signal) && fresh.handler <= HANDLER_IGNORE) catch_fault(signal);
            else if (fresh.handler <= HANDLER_IGNORE)
                result = set_kernel_action(signal, fresh.handler, fresh.flags & ~SA_RESTORER, fresh.mask);
            else
                result = set_kernel_action(signal, (u64)on_signal,
                                           SA_SIGINFO | SA_ONSTACK |
                                               (fresh.flags & (SA_NOCLDSTOP | SA_NOCLDWAIT | SA_RESTART)),
                                           ALL_SIGNALS);
        }
        SYS4(__NR_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
        if (result) {
            block->table->actions[signal] = old;
            return result;
        }
    }
    if (block->call[3] && copy_out(block->call[3], &old, sizeof old)) return -EFAULT;
    return 0;
}

i64 do_sigaltstack(struct block *block) {
    struct alternate_stack old = block->alternate, fresh;
    int on_alternate = is_on_alternate(block, block->rsp);
    if (block->call[1]) {
        if (copy_in(&fresh, block->call[1], sizeof fresh)) return -EFAULT;
        if (on_alternate) return -EPERM;
        u32 mode = fresh.flags & ~SS_AUTODISARM;
        if (mode != 0 && mode != SS_DISABLE && mode != SS_ONSTACK) return -EINVAL;
        if (mode == SS_DISABLE) fresh.base = fresh.size = 0;
        else if (fresh.size < 2048) return -ENOMEM;
        fresh.flags &= SS_AUTODISARM;
        block->alternate = fresh;
    }
    old.flags |= !old.size ? SS_DISABLE : on_alternate ? SS_ONSTACK : 0;
    if (block->call[2] && copy_out(block->call[2], &old, sizeof old)) return -EFAULT;
    return 0;
}
