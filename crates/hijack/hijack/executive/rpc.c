/* Guests that call the executive as a function, through the gate. */
#include "block.h"
#include "../include/orbit_hijack.h"

_Static_assert(RPC_CONTEXT_END == ORBIT_RPC_CONTEXT_END, "offsets.h");
_Static_assert(CHANNELS == ORBIT_CHANNELS, "abi.h");

/* Called by the gate, the guest's preserved registers saved. */
__attribute__((used)) i64 rpc(u64 number, u64 a, u64 b, u64 c, struct block *block) {
    if (number < ORBIT_RPC_OWN) return object_rpc(block, number, a, b, c);
    switch (number) {
    case ORBIT_RPC_NOTHING: return 0;
    case ORBIT_RPC_CALL: return channel_call(block, a, (const u64 *)b, (i64 *)c);
    case ORBIT_RPC_RECEIVE: return channel_receive(block, a, (u64 *)b);
    case ORBIT_RPC_REPLY: return channel_reply(block, a, b);
    case ORBIT_RPC_CONTEXT_CREATE: return context_create(block, a);
    case ORBIT_RPC_CONTEXT_RUN: return context_run(block, a);
    case ORBIT_RPC_CONTEXT_YIELD: return context_yield(block);
    case ORBIT_RPC_CONTEXT_END: return context_end_current(block);
    case ORBIT_RPC_CONTEXT_CYCLES: return context_cycles(block, a);
    }
    return -ENOSYS;
}

/* A signal came meanwhile: the guest's return is done here, and its handler comes first. */
__attribute__((used, noreturn)) void rpc_deferred(struct block *block) {
    block->rip = *(u64 *)block->rsp;
    block->rsp += 8;
    deliver_deferred(block);
}
