/*
 * A policy object that records what a program reads from outside (pipes, sockets, terminals, random
 * numbers), or feeds it the recorded bytes again. Any thread, any program, static too. The order is
 * kept for each descriptor.
 *
 * The host puts into the shared memory: u64 mode, then the path of the log. The log: records of
 * struct input, bytes.
 */
#define ORBIT_POLICY_OBJECT
#include "orbit_hijack.h"
#include <asm/unistd_64.h>

void *memcpy(void *to, const void *from, unsigned long bytes);

#define RECORD 1
#define REPLAY 2
#define MAX_FD 1024
#define RANDOM_FD MAX_FD /* getrandom has a sequence of its own */
#define LOG_FD 900       /* the log's descriptor is this or higher */

struct input {
    char name[16]; /* of the program, as the kernel shows it */
    int fd;
    int pad;
    long result; /* of the call; bytes follow if positive, padded to 8 */
};

static unsigned long mode;
static char name[16] __attribute__((aligned(8)));

static int is_ours(const struct input *input) {
    const unsigned long *a = (const unsigned long *)input->name, *b = (const unsigned long *)name;
    return a[0] == b[0] && a[1] == b[1];
}

static long log_fd = -1;
static const char *log_begin, *log_end;
static const char *next[MAX_FD + 1]; /* where each descriptor's search continues */
static volatile int lock;

#define call6 orbit_executive.system_call
#define is_error(result) ((unsigned long)(result) > -4096ul)

static void acquire(void) {
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) call6(__NR_sched_yield, 0, 0, 0, 0, 0, 0);
}
static void release(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

static void begin(void) {
    const unsigned long *share = orbit_executive.share;
    mode = share[0];
    call6(__NR_prctl, 16 /* PR_GET_NAME */, (unsigned long)name, 0, 0, 0, 0);
    /* O_WRONLY|O_CREAT|O_APPEND|O_CLOEXEC, or O_RDONLY|O_CLOEXEC */
    long fd = call6(__NR_open, (unsigned long)(share + 1), mode == RECORD ? 02002101 : 02000000, 0600, 0, 0, 0);
    if (is_error(fd)) {
        mode = 0;
        return;
    }
    log_fd = call6(__NR_fcntl, fd, 1030 /* F_DUPFD_CLOEXEC */, LOG_FD, 0, 0, 0);
    call6(__NR_close, fd, 0, 0, 0, 0, 0);
    if (mode != REPLAY) return;
    long bytes = call6(__NR_lseek, log_fd, 0, 2 /* SEEK_END */, 0, 0, 0);
    long at = call6(__NR_mmap, 0, bytes, 1 /* PROT_READ */, 2 /* MAP_PRIVATE */, log_fd, 0);
    if (bytes <= 0 || is_error(at)) return;
    log_begin = (const char *)at;
    log_end = log_begin + bytes;
    for (int i = 0; i <= MAX_FD; i++) next[i] = log_begin;
}

/* Whether a descriptor brings something from outside: no regular file, no directory. */
static int is_outside(long fd) {
    struct {
        unsigned long device, inode, links;
        unsigned mode;
        char rest[120];
    } about;
    if (call6(__NR_fstat, fd, (unsigned long)&about, 0, 0, 0, 0)) return 0;
    unsigned kind = about.mode & 0170000;
    return kind != 0100000 && kind != 0040000;
}

/* The sequence that a call belongs to; -1: none. */
static int sequence_of(const struct orbit_call *call) {
    if (call->number == __NR_getrandom) return RANDOM_FD;
    unsigned long fd = call->arguments[0];
    return fd < MAX_FD && is_outside(fd) ? (int)fd : -1;
}

static unsigned long buffer_of(const struct orbit_call *call) {
    return call->number == __NR_getrandom ? call->arguments[0] : call->arguments[1];
}

static unsigned long size_of(const struct orbit_call *call) {
    return call->number == __NR_getrandom ? call->arguments[1] : call->arguments[2];
}

static int call(struct orbit_call *call) {
    int sequence;
    if (mode != REPLAY || !log_begin || (sequence = sequence_of(call)) < 0) return ORBIT_PASS;
    int verdict = ORBIT_PASS;
    acquire();
    const char *at = next[sequence];
    while (log_end - at >= (long)sizeof(struct input)) {
        const struct input *input = (const struct input *)at;
        long bytes = input->result > 0 ? input->result : 0;
        if (bytes > log_end - at - (long)sizeof *input) break;
        at += sizeof *input + ((bytes + 7) & ~7l);
        if (input->fd != sequence || !is_ours(input)) continue;
        /* The program asks for less than it did: it has changed, and no longer gets what was
         * recorded. */
        if (bytes > (long)size_of(call)) break;
        next[sequence] = at;
        call->result = input->result;
        if (bytes && orbit_executive.write(buffer_of(call), input + 1, bytes)) call->result = -14; /* EFAULT */
        verdict = ORBIT_ANSWER;
        break;
    }
    release();
    return verdict;
}

static void result(struct orbit_call *call) {
    if (mode != RECORD || call->result == -4 /* EINTR */ || call->result == -11 /* EAGAIN */) return;
    int sequence = sequence_of(call);
    if (sequence < 0) return;
    static const char zeros[8];
    struct input input = {.fd = sequence, .result = call->result};
    memcpy(input.name, name, sizeof name);
    unsigned long bytes = call->result > 0 ? call->result : 0;
    struct {
        const void *base;
        unsigned long bytes;
    } parts[3] = {{&input, sizeof input}, {(void *)buffer_of(call), bytes}, {zeros, -bytes & 7}};
    /* One call appends one record, so that threads do not mix theirs. */
    call6(__NR_writev, log_fd, (unsigned long)parts, 3, 0, 0, 0);
}

#define BIT(n) (1ul << ((n) % 64))
const struct orbit_policy orbit_policy = {
    .version = ORBIT_HIJACK_VERSION,
    .calls = {BIT(__NR_read) | BIT(__NR_recvfrom), 0, 0, 0, BIT(__NR_getrandom), 0},
    .start = begin,
    .call = call,
    .result = result,
};
