/*
 * The memory that the host and all guests share. The host (`src/shared.rs`) has the same layout.
 *
 * Guests can write all of it, since nothing but a protection key could stop them. So the host checks every value it
 * reads, and the executive copies `calls` and `options` into its own memory when it starts.
 */
#ifndef ABI_H
#define ABI_H

#include "sys.h"

#define ABI_VERSION 1

/* Address of the shared memory in every guest. */
#define SHARED_ADDRESS 0x1f1000000000ul

#define MAX_CALLS 512
#define MAX_SLOTS 2048
#define RING_BYTES 65536ul
#define MAX_RECORD 4096
#define MAX_RULES 64
#define MAX_CONDITIONS 4
#define PATTERN_BYTES 128

/* options */
#define OPTION_TRACE 1u         /* write a record at the entry and the exit of each call */
#define OPTION_LOSSY 2u         /* a full ring drops records and counts them, in place of waiting for the host */
#define OPTION_NO_REWRITE 4u    /* every call goes by SIGSYS */
#define OPTION_IO_URING 8u      /* io_uring_setup passes */
#define OPTION_SAVE_ALL 16u     /* every call goes through C with saved registers (for measurements) */
#define OPTION_VIRTUAL_TIME 32u /* the vdso is hidden, and clocks run at `speed` / `speed_per` */

/* What is captured of an argument. `size`: bytes; `length`: index of the argument that holds a length. */
struct capture {
    u8 kind;
    u8 length;
    u16 size;
};
#define CAPTURE_NONE 0
#define CAPTURE_STRING 1     /* at entry: up to a zero byte */
#define CAPTURE_BUFFER 2     /* at entry: as many bytes as argument `length` says, at most `size` */
#define CAPTURE_FIXED 3      /* at entry: `size` bytes */
#define CAPTURE_VECTOR 4     /* at entry: strings of a null-terminated array */
#define CAPTURE_OUT_RESULT 5 /* at exit: as many bytes as the result says, at most `size` */
#define CAPTURE_OUT_FIXED 6  /* at exit, if the call succeeded: `size` bytes */
#define CAPTURE_OUT_LENGTH 7 /* at exit, if the call succeeded: length is an int that argument `length` points to */
#define CAPTURE_IOVEC 8 /* at entry: first buffers of an iovec array with `length` entries, at most `size` bytes */

/* `roles`: the arguments that rules name by their meaning; NO_ARGUMENT: the call has none of it. */
struct call_description {
    struct capture arguments[6];
    u8 roles[8];
};
#define NO_ARGUMENT 0xff
#define ROLE_FLAG 0x80 /* in `argument` and `target`: a role in place of an index */

/* A condition on one argument. All conditions of a rule hold, or it does not apply. */
struct condition {
    u8 argument;
    u8 kind;
    u8 negated;
    u8 pad[5];
    u64 low, high;
    char pattern[PATTERN_BYTES];
};
#define CONDITION_RANGE 1   /* low <= argument <= high, unsigned */
#define CONDITION_BITS 2    /* (argument & low) == high */
#define CONDITION_STRING 3  /* the string at the argument matches the pattern (`*` and `?`) */
#define CONDITION_FD_PATH 4 /* the path of the descriptor matches the pattern */
#define CONDITION_PORT 5    /* the port of the socket address at the argument lies in low..high */
#define CONDITION_INT 6     /* low <= argument <= high, as signed 32-bit */

struct rule {
    u64 calls[MAX_CALLS / 64];
    u32 condition_count;
    u32 action;
    i64 value;   /* ACTION_ANSWER: result; ACTION_DELAY: ns; ACTION_KILL: signal; ACTION_ARGUMENT: value */
    u64 skip;    /* matches that pass before the action applies */
    u64 times;   /* times that the action applies; 0: no limit */
    u64 every;   /* applies to each `every`-th match; 0 and 1: all */
    u32 chance;  /* of 2^32 - 1 */
    u32 target;  /* ACTION_ARGUMENT, ACTION_STRING: index or role of the argument */
    u64 site;    /* 1-based number of the site; 0: any */
    u64 matched; /* counted by guests */
    u64 applied; /* counted by guests */
    struct condition conditions[MAX_CONDITIONS];
    char text[PATTERN_BYTES]; /* ACTION_STRING: what replaces the string */
};
#define ACTION_COUNT 0
#define ACTION_ANSWER 1
#define ACTION_DELAY 2
#define ACTION_KILL 3
#define ACTION_ARGUMENT 4
#define ACTION_STRING 5
#define ACTION_PASS 6 /* later rules are not asked */

/* One thread of a guest, and its ring. A ring has one writer (the thread) and one reader (the host). */
struct slot {
    u32 state; /* SLOT_*; the guest claims FREE and sets DONE, the host sets FREE */
    u32 tid;
    u32 pid;
    u32 pad;
    u64 head; /* bytes written since the ring was claimed; written by the guest */
    u64 lost; /* records dropped; written by the guest */
    u64 pad1[4];
    u64 tail; /* bytes read; written by the host */
    u64 pad2[7];
};
#define SLOT_FREE 0
#define SLOT_USED 1
#define SLOT_DONE 2

enum statistic {
    STAT_TRAPS, /* SIGSYS of dispatch */
    STAT_SITES, /* sites seen */
    STAT_REWRITTEN_MOV,
    STAT_REWRITTEN_PAD,
    STAT_NOT_REWRITTEN,
    STAT_DEFERRED,  /* signals that arrived in the executive */
    STAT_DELIVERED, /* signals given to guests' handlers */
    STAT_EXECS,
    STAT_CLONES,
    STAT_COMPAT,  /* int 0x80 */
    STAT_REFUSED, /* calls that named the executive's memory, and the like */
    STAT_LOST,    /* records lost by threads without a slot */
    STAT_LIMIT = 32
};

struct shared_memory {
    u64 counts[MAX_CALLS]; /* of threads without a slot */
    u64 stats[STAT_LIMIT];
    u32 version, host_pid, options, threshold;
    u32 bell;       /* futex: guests wake the host */
    u32 slot_limit; /* slots at and above were never claimed */
    u32 first;      /* 1 until the first guest has begun */
    u32 rule_count;
    u64 speed, speed_per;
    u64 time_base[8]; /* ns of the clocks when the session began */
    struct call_description calls[MAX_CALLS];
    struct rule rules[MAX_RULES];
    struct slot slots[MAX_SLOTS];
};
/* Behind the structure: MAX_CALLS counters a slot, which continue when another thread takes it; then rings. */
#define COUNTS_OFFSET ((sizeof(struct shared_memory) + 4095) & ~4095ul)
#define RINGS_OFFSET (COUNTS_OFFSET + MAX_SLOTS * MAX_CALLS * 8ul)
#define SHARED_BYTES (RINGS_OFFSET + MAX_SLOTS * RING_BYTES)

/* Records. `size` counts the header and is a multiple of 8. */
struct record {
    u16 size;
    u8 type;
    u8 flags;
    u32 tid;
    u64 time; /* time stamp counter */
};
#define RECORD_ENTRY 1  /* i64 number, u64 arguments[6], u64 site address, blobs */
#define RECORD_EXIT 2   /* i64 result, blobs */
#define RECORD_ABORT 3  /* the call did not begin: a signal comes first */
#define RECORD_SIGNAL 4 /* i64 signal, i64 code, u64 address or sender */
#define RECORD_START 5  /* a thread begins: i64 pid, i64 parent's tid, i64 kind (0 thread, 1 process, 2 exec) */
#define RECORD_NOTE 6   /* a policy acted: i64 rule index, i64 action */

struct blob {
    u16 argument;
    u16 length; /* bytes that follow, then padding to a multiple of 8 */
    u32 flags;
};
#define BLOB_CUT 1 /* there was more */

#define shared ((volatile struct shared_memory *)SHARED_ADDRESS)
#define count_stat(which) __atomic_add_fetch(&shared->stats[which], 1, __ATOMIC_RELAXED)

#endif
