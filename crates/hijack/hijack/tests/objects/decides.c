/* A policy object for the tests: one behaviour for each call that it handles. */
#define ORBIT_POLICY_OBJECT
#include "orbit_hijack.h"
#include <asm/unistd_64.h>

static long calls;              /* data of its own */
static const char *const words[] = {"alpha", "beta"}; /* constants that are relocated */

static int *volatile nowhere = (int *)8;

static void begin(void) { __atomic_add_fetch((long *)orbit_executive.share, 1, __ATOMIC_RELAXED); }

static int call(struct orbit_call *call) {
    calls++;
    switch (call->number) {
    case __NR_getppid: call->result = 4242; return ORBIT_ANSWER;
    case __NR_getpgid: call->result = calls; return ORBIT_ANSWER;
    case __NR_mkdir: {
        char path[256];
        if (orbit_executive.string(path, call->arguments[0], sizeof path) < 0) return ORBIT_PASS;
        for (char *at = path; *at; at++)
            if (*at == '#') {
                call->result = -30; /* EROFS */
                return ORBIT_ANSWER;
            }
        return ORBIT_PASS;
    }
    case __NR_write:
        if (call->arguments[2] > 4) call->arguments[2] = 4;
        return ORBIT_PASS;
    case __NR_sysinfo: return *nowhere; /* faults */
    case __NR_sync:
        for (volatile long i = 0;; i++) {
        }
    case __NR_chroot: return orbit_executive.ask(call);
    }
    return ORBIT_PASS;
}

static void result(struct orbit_call *call) {
    /* What uname says is replaced by a word of ours. */
    if (call->number == __NR_uname && !call->result) orbit_executive.write(call->arguments[0], words[1], 5);
    if (call->number == __NR_getuid) call->result = 77;
}

static long rpc(unsigned long number, unsigned long a, unsigned long b, unsigned long c) {
    return number == 1 ? (long)(a + b + c) : -1;
}

/* The context that was made last. */
static unsigned pick(const struct orbit_context_view *ready, unsigned count) {
    (void)ready;
    return count - 1;
}

#define BIT(n) (1ul << ((n) % 64))
const struct orbit_policy orbit_policy = {
    .version = ORBIT_HIJACK_VERSION,
    .calls = {BIT(__NR_write) | BIT(__NR_uname),
              BIT(__NR_getppid) | BIT(__NR_getpgid) | BIT(__NR_mkdir) | BIT(__NR_sysinfo) | BIT(__NR_getuid),
              BIT(__NR_sync) | BIT(__NR_chroot)},
    .start = begin,
    .call = call,
    .result = result,
    .rpc = rpc,
    .pick = pick,
};
