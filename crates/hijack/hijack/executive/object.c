/*
 * The policy object: code of the user's that decides about calls on the executive's side. The host
 * has linked it for OBJECT_ADDRESS. Whatever it does with wrong pointers or endless loops, the
 * thread returns through `object_escape`; then the object is off in this process and calls pass, or
 * the process ends, as the host set it.
 */
#define ORBIT_POLICY_OBJECT
#include "block.h"
#include "../include/orbit_hijack.h"

u32 has_object;
volatile u32 object_is_off;
static struct orbit_policy object; /* a copy: the object cannot alter what the executive goes by */

_Static_assert(offset_of(struct orbit_registers, rip) + offset_of(struct block, rax) == B_RIP, "one order of "
    "registers");

static volatile struct inspection *inspection_of(struct block *block) {
    return block->slot ? &extension->inspections[block->slot - shared->slots] : NULL;
}

static void report(struct block *block, u32 failure) {
    count_stat(failure == OBJECT_LOOPED ? STAT_OBJECT_LOOPS : STAT_OBJECT_FAULTS);
    if (options & OPTION_OBJECT_KILL)
        die(failure == OBJECT_LOOPED ? "the policy object used more CPU time than its limit, which ends this process"
                                     : "the policy object faulted, which ends this process",
            "", 0);
    object_is_off = 1;
    (void)block;
}

/* Calls a function of the object; `*failed` is set if it did not return. */
static i64 run(struct block *block, u64 function, u64 a, u64 b, u64 c, u64 d, int *failed) {
    volatile struct inspection *inspection = inspection_of(block);
    u32 vectors = object.flags & ORBIT_POLICY_VECTORS;
    block->object_failed = 0;
    if (inspection) inspection->busy++;
    if (vectors) __asm__ volatile("fxsave64 %0" : "=m"(block->vectors));
    i64 result = call_object(function, a, b, c, d);
    if (vectors) __asm__ volatile("fxrstor64 %0" ::"m"(block->vectors));
    if (inspection) inspection->busy++;
    *failed = block->object_failed;
    if (*failed) report(block, *failed);
    return result;
}

static void describe(struct block *block, struct orbit_call *call) {
    call->number = block->call[0];
    memcpy(call->arguments, &block->call[1], sizeof call->arguments);
    call->result = block->rax;
    call->site = block->stub->site;
    call->tid = block->tid;
    call->pid = block->pid;
    block->unused[0] = block->unused[1] = 0;
    block->unused[2] = 0x202;
    call->registers = (struct orbit_registers *)&block->rax;
}

int object_call(struct block *block) {
    if (object_is_off || !object.call) return ENTER_KERNEL;
    struct orbit_call call;
    u64 back = block->rip, number = block->rax;
    int failed;
    describe(block, &call);
    i64 verdict = run(block, (u64)object.call, (u64)&call, 0, 0, 0, &failed);
    block->rip = back;
    block->rax = number;
    if (failed) return ENTER_KERNEL;
    memcpy(&block->call[1], call.arguments, sizeof call.arguments);
    if (verdict != ORBIT_ANSWER) return ENTER_KERNEL;
    block->rax = call.result;
    return ENTER_DONE;
}

void object_result(struct block *block) {
    if (object_is_off || !object.result) return;
    struct orbit_call call;
    u64 back = block->rip, result = block->rax;
    int failed;
    describe(block, &call);
    run(block, (u64)object.result, (u64)&call, 0, 0, 0, &failed);
    block->rip = back;
    block->rax = failed ? (i64)result : call.result;
}

i64 object_rpc(struct block *block, u64 number, u64 a, u64 b, u64 c) {
    if (!has_object || object_is_off || !object.rpc) return -ENOSYS;
    int failed;
    i64 result = run(block, (u64)object.rpc, number, a, b, c, &failed);
    return failed ? -ENOSYS : result;
}

u32 object_pick(struct block *block, const void *ready, u32 count) {
    if (!has_object || object_is_off || !object.pick) return ~0u;
    int failed;
    u32 choice = run(block, (u64)object.pick, (u64)ready, count, 0, 0, &failed);
    return failed ? ~0u : choice;
}

/* In the handler of the timer's signal, all signals blocked: faults of the object must come
 * through. */
void object_timer(struct block *block, struct context *context) {
    if (!has_object || object_is_off || !object.timer) return;
    struct orbit_registers registers;
    u64 open = FAULT_MASK | bit(SIGSYS), before;
    int failed;
    copy_registers_out(context, (u64 *)&registers);
    SYS4(__NR_rt_sigprocmask, SIG_UNBLOCK, &open, &before, 8);
    run(block, (u64)object.timer, (u64)&registers, 0, 0, 0, &failed);
    SYS4(__NR_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
    if (!failed) copy_registers_in(context, (u64 *)&registers);
}

/* A timer of this thread's CPU time: it never interrupts a call that waits. */
i64 set_tick(struct block *block, u64 nanoseconds) {
    struct {
        u64 value;
        i32 signal, notify, thread, pad[11];
    } event = {VALUE_TICK, SIGSYS, 4 /* SIGEV_THREAD_ID */, block->tid, {0}};
    i64 every = nanoseconds / 1000000000, rest = nanoseconds % 1000000000, times[4] = {every, rest, every, rest};
    if (block->timer >= 0 && !nanoseconds) {
        SYS1(__NR_timer_delete, block->timer);
        block->timer = -1;
    }
    if (!nanoseconds) return 0;
    if (block->timer < 0) {
        i32 id;
        i64 error = SYS3(__NR_timer_create, 3 /* CLOCK_THREAD_CPUTIME_ID */, &event, &id);
        if (error) return error;
        block->timer = id;
    }
    return SYS4(__NR_timer_settime, block->timer, 0, times, NULL);
}

/* What the object may call. */

static i64 for_object_call(u64 number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
    return SYS6(number, a, b, c, d, e, f);
}
static i64 for_object_read(void *to, u64 guest, u64 bytes) { return copy_in(to, guest, bytes); }
static i64 for_object_write(u64 guest, const void *from, u64 bytes) { return copy_out(guest, from, bytes); }
static i64 for_object_string(char *to, u64 guest, u64 limit) { return copy_string(to, guest, limit); }
static void for_object_note(u64 value) { trace_note(this_block(), -1, value); }
static i64 for_object_timer(u64 nanoseconds) { return set_tick(this_block(), nanoseconds); }

static int for_object_ask(struct orbit_call *call) {
    struct block *block = this_block();
    i64 result;
    memcpy(&block->call[1], call->arguments, sizeof call->arguments);
    block->rule = ~0u;
    if (!ask_host(block, &result)) return ORBIT_PASS;
    call->result = result;
    return ORBIT_ANSWER;
}

__attribute__((used)) const struct orbit_executive orbit_executive = {
    .system_call = for_object_call,
    .read = for_object_read,
    .write = for_object_write,
    .string = for_object_string,
    .ask = for_object_ask,
    .note = for_object_note,
    .set_timer = for_object_timer,
    .share = (void *)((struct extension_memory *)(SHARED_ADDRESS + EXTENSION_OFFSET))->share,
};

void load_object(void) {
    struct object_description from = shared->object;
    if (!from.policy) return;
    if (from.bytes > OBJECT_LIMIT || from.text_bytes > from.bytes || from.policy < OBJECT_ADDRESS ||
        from.policy + sizeof object > OBJECT_ADDRESS + from.bytes)
        die("the policy object's description makes no sense", "", 0);
    i64 at = SYS6(__NR_mmap, OBJECT_ADDRESS, from.bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != OBJECT_ADDRESS) die("cannot map the policy object", "", at);
    i64 got = SYS4(__NR_pread64, kept, at, from.bytes, OBJECT_OFFSET);
    if (got != (i64)from.bytes) die("cannot read the policy object", "", got);
    SYS3(__NR_mprotect, at, from.text_bytes, PROT_READ | PROT_EXEC);
    memcpy(&object, (void *)from.policy, sizeof object);
    has_object = 1;
    for (u32 i = 0; i < MAX_CALLS; i++)
        if (object.calls[i / 64] >> (i % 64) & 1) call_flags[i] |= FLAG_OBJECT;
    catch_faults();
    int failed;
    if (object.start) run(this_block(), (u64)object.start, 0, 0, 0, 0, &failed);
}
