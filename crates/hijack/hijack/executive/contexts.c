/*
 * Guest contexts: several flows of control on one kernel thread, changed by the executive. The
 * scheduler is the policy object's `pick`, or the built-in one: of the ready contexts the one with
 * the least cycles for its share.
 *
 * A context that yielded has its registers as a function's caller expects them; one that a timer
 * interrupted has a whole signal frame, and is resumed through one.
 */
#include "block.h"
#include "../include/orbit_hijack.h"

#define VECTOR_LIMIT 12288

enum context_state { CONTEXT_NONE, CONTEXT_YIELDED, CONTEXT_INTERRUPTED };

struct guest_context {
    u32 state;
    u32 share;
    u64 cycles;
    u64 start; /* added for comparisons: what the least used one had when this one was made */
    u64 rbx, rdi, rbp, rsp, r12, r13, r14, r15; /* YIELDED; the return address is on the stack */
    struct frame frame;                         /* INTERRUPTED */
    u8 vector[VECTOR_LIMIT] __attribute__((aligned(64)));
};

/* 0: the caller of `context_run`. */
struct contexts {
    u32 current;
    u32 limit;
    u32 running; /* `context_run` was called and has not returned */
    u64 began;   /* when the current one began to run */
    struct guest_context all[ORBIT_MAX_CONTEXTS];
};

static struct contexts *contexts_of(struct block *block) {
    if (block->contexts) return block->contexts;
    i64 at = SYS6(__NR_mmap, 0, sizeof(struct contexts), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (is_error(at)) return NULL;
    block->contexts = (struct contexts *)at;
    block->contexts->limit = 1;
    return block->contexts;
}

void free_contexts(struct block *block) {
    if (block->contexts) SYS2(__NR_munmap, block->contexts, sizeof(struct contexts));
    block->contexts = NULL;
}

/* Cycles with which a context is compared. */
static u64 used(const struct guest_context *context) { return context->cycles + context->start; }

/* What a new context starts with, so that it neither starves the others nor waits for them. */
static u64 least_used(const struct contexts *contexts, u32 share) {
    u64 least = 0;
    int is_first = 1;
    for (u32 id = 1; id < contexts->limit; id++) {
        const struct guest_context *each = &contexts->all[id];
        if (each->state == CONTEXT_NONE) continue;
        u64 cycles = used(each) / each->share * share;
        if (is_first || cycles < least) least = cycles;
        is_first = 0;
    }
    return least;
}

i64 context_create(struct block *block, u64 request) {
    struct orbit_context_request wanted;
    struct contexts *contexts = contexts_of(block);
    if (!contexts) return -EAGAIN;
    if (copy_in(&wanted, request, sizeof wanted)) return -EFAULT;
    if (!wanted.share || wanted.share > 1000) return -EINVAL;
    u32 id = 1;
    while (id < ORBIT_MAX_CONTEXTS && contexts->all[id].state != CONTEXT_NONE) id++;
    if (id == ORBIT_MAX_CONTEXTS) return -EAGAIN;
    struct guest_context *fresh = &contexts->all[id];
    /* The gate's return goes to the function, and the function's to `context_end`. */
    u64 words[2] = {(u64)wanted.function, (u64)context_end};
    u64 sp = ((u64)wanted.stack_end & ~15ul) - 16;
    if (copy_out(sp, words, sizeof words)) return -EFAULT;
    fresh->cycles = 0;
    fresh->start = least_used(contexts, wanted.share);
    fresh->share = wanted.share;
    fresh->rbx = fresh->rbp = fresh->r12 = fresh->r13 = fresh->r14 = fresh->r15 = 0;
    fresh->rdi = (u64)wanted.argument;
    fresh->rsp = sp;
    fresh->state = CONTEXT_YIELDED;
    if (contexts->limit <= id) contexts->limit = id + 1;
    return id;
}

/* The context to run next; 0: none is left but the caller of `context_run`. */
static u32 pick(struct block *block, struct contexts *contexts) {
    struct orbit_context_view ready[ORBIT_MAX_CONTEXTS];
    u32 count = 0, best = 0;
    for (u32 id = 1; id < contexts->limit; id++) {
        struct guest_context *each = &contexts->all[id];
        if (each->state == CONTEXT_NONE) continue;
        ready[count] = (struct orbit_context_view){id, each->share, used(each)};
        /* cycles / share, without a division. */
        if (count && used(each) * ready[best].share < ready[best].cycles * each->share) best = count;
        count++;
    }
    if (count < 2) return count ? ready[0].id : 0;
    if (has_object) {
        u32 choice = object_pick(block, ready, count);
        if (choice < count) best = choice;
    }
    return ready[best].id;
}

static void save_yielded(struct block *block, struct guest_context *context) {
    context->rbx = block->rbx;
    context->rdi = 0;
    context->rbp = block->rbp;
    context->rsp = block->rsp;
    context->r12 = block->r12;
    context->r13 = block->r13;
    context->r14 = block->r14;
    context->r15 = block->r15;
    context->state = CONTEXT_YIELDED;
}

static void load_yielded(struct block *block, const struct guest_context *context) {
    block->rbx = context->rbx;
    block->rdi = context->rdi;
    block->rbp = context->rbp;
    block->rsp = context->rsp;
    block->r12 = context->r12;
    block->r13 = context->r13;
    block->r14 = context->r14;
    block->r15 = context->r15;
}

/* From a function call of the guest to another context; returns only where that one had yielded
 * too. */
static i64 enter_context(struct block *block, struct contexts *contexts, u32 next) {
    struct guest_context *to = &contexts->all[next];
    contexts->current = next;
    contexts->began = time_stamp();
    if (to->state == CONTEXT_YIELDED) {
        load_yielded(block, to);
        return 0;
    }
    to->frame.context.vector_state = (u64)to->vector;
    to->frame.context.stack = (struct alternate_stack){(u64)block->signal_stack, 0, 0, STACK_BYTES};
    return_through(&to->frame);
}

static void charge(struct contexts *contexts) {
    contexts->all[contexts->current].cycles += time_stamp() - contexts->began;
}

i64 context_run(struct block *block, u64 slice) {
    struct contexts *contexts = block->contexts;
    if (!contexts || contexts->running) return -EINVAL;
    u32 next = pick(block, contexts);
    if (!next) return 0;
    if (slice) {
        i64 error = set_tick(block, slice < 100000 ? 100000 : slice);
        if (error) return error;
    }
    save_yielded(block, &contexts->all[0]);
    contexts->running = 1;
    return enter_context(block, contexts, next);
}

i64 context_yield(struct block *block) {
    struct contexts *contexts = block->contexts;
    if (!contexts || !contexts->running) return 0;
    charge(contexts);
    u32 next = pick(block, contexts);
    if (next == contexts->current) {
        contexts->began = time_stamp();
        return 0;
    }
    save_yielded(block, &contexts->all[contexts->current]);
    return enter_context(block, contexts, next);
}

i64 context_end_current(struct block *block) {
    struct contexts *contexts = block->contexts;
    if (!contexts || !contexts->running) return -EINVAL;
    charge(contexts);
    contexts->all[contexts->current].state = CONTEXT_NONE;
    u32 next = pick(block, contexts);
    if (!next) {
        contexts->running = 0;
        set_tick(block, 0);
    }
    return enter_context(block, contexts, next);
}

i64 context_cycles(struct block *block, u64 id) {
    if (!block->contexts || !id || id >= ORBIT_MAX_CONTEXTS) return -EINVAL;
    return block->contexts->all[id].cycles;
}

void context_tick(struct block *block, struct context *context) {
    struct contexts *contexts = block->contexts;
    if (!contexts || !contexts->running) return;
    charge(contexts);
    contexts->began = time_stamp();
    u32 next = pick(block, contexts);
    u64 bytes = vector_bytes(context->vector_state);
    if (!next || next == contexts->current || bytes > VECTOR_LIMIT) return;
    struct guest_context *from = &contexts->all[contexts->current], *to = &contexts->all[next];
    contexts->current = next;
    from->frame.context = *context;
    memcpy(from->vector, (void *)context->vector_state, bytes);
    from->state = CONTEXT_INTERRUPTED;
    if (to->state == CONTEXT_INTERRUPTED) {
        struct context kept = *context;
        *context = to->frame.context;
        context->vector_state = kept.vector_state;
        context->stack = kept.stack;
        context->mask = kept.mask;
        memcpy((void *)context->vector_state, to->vector, bytes);
        return;
    }
    u64 back = 0;
    copy_in(&back, to->rsp, sizeof back);
    context->rbx = to->rbx;
    context->rdi = to->rdi;
    context->rbp = to->rbp;
    context->r12 = to->r12;
    context->r13 = to->r13;
    context->r14 = to->r14;
    context->r15 = to->r15;
    context->rax = 0;
    context->rsp = to->rsp + 8;
    context->rip = back;
    context->rflags &= ~0x400ul;
}
