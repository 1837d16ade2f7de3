/*
 * The memory that the host and all guests share. The host (`src/shared.rs`) has the same layout.
 *
 * Guests can write all of it, since nothing but a protection key could stop them. So the host
 * checks every value it reads, and the executive copies `calls` and `options` into its own memory
 * when it starts.
 */
#ifndef ABI_H
#define ABI_H

#include "sys.h"

#define ABI_VERSION 5

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
#define OPTION_VIRTUAL_TIME 32u /* the vdso is hidden; clocks run at `speed` / `speed_per`, and jump */
#define OPTION_ASK_KILL 128u    /* a question without an answer ends its process; else the call passes */
/* A policy object that faults or loops ends its process; else calls pass from then on. */
#define OPTION_OBJECT_KILL 64u

/* What is captured of an argument. `size`: bytes; `length`: index of the argument that holds a
 * length. */
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
#define ACTION_ASK 7  /* the host decides: pass, or an answer */

/*
 * One thread of a guest, and its ring. A ring has one writer (the thread) and one reader (the
 * host). Processes of a session have numbers from 1, since ids say nothing in another PID
 * namespace. While calls are traced each process that lives holds a lock of the session's file
 * (fcntl) at its number, and the host holds one at 0: the kernel releases it with its process.
 */
struct slot {
    u32 state; /* SLOT_*, the process' number above; the guest claims FREE, sets DONE, the host FREE */
    u32 tid;
    u32 pid;
    u32 pad;
    u64 head; /* bytes written since the ring was claimed; written by the guest */
    u64 lost; /* records dropped; written by the guest */
    u64 pad1[4];
    u64 tail; /* bytes read; written by the host */
    u64 pad2[7];
};
#define SLOT_FREE 0u
#define SLOT_USED 1u
#define SLOT_DONE 2u
#define SLOT(state, process) ((state) | (process) << 2)

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
    STAT_OBJECT_FAULTS, /* of the policy object */
    STAT_OBJECT_LOOPS,  /* functions of the policy object that were ended for their CPU time */
    STAT_ASKED,         /* questions for the host */
    STAT_UNANSWERED,    /* questions that found no place or no answer in time: the call passed */
    STAT_SETUID,        /* programs that would have got another user's or group's rights, and did not */
    STAT_CROWDED,       /* calls at sites that the table has no room for */
    /* Seccomp filters of guests that were refused, by why: see filters.c. */
    STAT_FILTERS_STRICT,
    STAT_FILTERS_LISTENER,
    STAT_FILTERS_ADDRESS,
    STAT_FILTERS_LONG,
    STAT_LIMIT = 32
};

/* The policy object: `bytes` at OBJECT_OFFSET are its image for OBJECT_ADDRESS, the first
 * `text_bytes` read-only. */
struct object_description {
    u64 bytes, text_bytes, policy; /* policy: address of its struct orbit_policy; 0: there is no object */
};
#define OBJECT_ADDRESS 0x1f0008000000ul
#define OBJECT_LIMIT 0x100000ul

struct shared_memory {
    u64 counts[MAX_CALLS]; /* of threads without a slot */
    u64 stats[STAT_LIMIT];
    u32 version, processes, options, threshold; /* processes: how many there were */
    u32 bell;       /* futex: guests wake the host */
    u32 slot_limit; /* slots at and above were never claimed */
    u32 first;      /* 1 until the first guest has begun */
    u32 rule_count;
    u64 speed, speed_per;      /* of guests' clocks, a fraction of the real; speed 0: they stand still */
    i64 jump;                  /* ns that guests' real-time clock jumps by; 0: it does not */
    u64 jump_after;            /* ns of real time after `time_base` at which it does */
    u64 waited;                /* ns by which waits have moved clocks of speed 0 */
    u64 time_base[12]; /* ns of the clocks when the session began */
    struct object_description object;
    u64 ask_limit; /* ns that a guest waits for an answer */
    u64 seed;      /* of what rules draw */
    struct call_description calls[MAX_CALLS];
    struct rule rules[MAX_RULES];
    struct slot slots[MAX_SLOTS];
};
/*
 * Behind the structure: the extension, up to where all guests map the file; the policy object,
 * which is read; MAX_CALLS counters a slot, which continue when another thread takes it; then
 * rings, only where calls are traced. Of the last two a guest maps what its threads have.
 */
#define EXTENSION_OFFSET ((sizeof(struct shared_memory) + 4095) & ~4095ul)
#define OBJECT_OFFSET (EXTENSION_OFFSET + ((sizeof(struct extension_memory) + 4095) & ~4095ul))
#define COUNTS_OFFSET (OBJECT_OFFSET + OBJECT_LIMIT)
#define COUNTS_BYTES (MAX_CALLS * 8ul)
#define RINGS_OFFSET (COUNTS_OFFSET + MAX_SLOTS * COUNTS_BYTES)
#define SHARED_BYTES (RINGS_OFFSET + MAX_SLOTS * RING_BYTES)

/*
 * Calls from guest to guest. A cache line for each writer: the request, which the caller writes and
 * the receiver takes; the reply, which the receiver writes; the lock of the callers; the lock of
 * the receivers.
 */
#define CHANNEL_WORDS 6
struct channel {
    u32 state; /* CHANNEL_*; a futex of the receiver */
    u32 pad0;
    u64 words[CHANNEL_WORDS];
    u64 pad;
    u32 replies; /* twice their number, and CALLER_SLEEPS; a futex of the caller */
    u32 pad4;
    i64 result;
    u32 receiver; /* tid of the thread that receives, or did last */
    u32 pad1[11];
    u32 owner; /* tid of the caller whose turn it is; 0: none */
    u32 pad2[15];
    u32 waiting; /* tid of the thread that is in `channel_receive`; 0: none */
    u32 pad3[15];
};
_Static_assert(sizeof(struct channel) == 256, "four cache lines");
#define CHANNEL_IDLE 0
#define CHANNEL_REQUEST 1 /* only the caller and the receiver change it from here */
#define CHANNEL_TAKEN 2   /* only the receiver does; a caller does for a receiver that has died */
#define CHANNEL_SLEEPS 3  /* idle; the next caller wakes the receiver */
#define CALLER_SLEEPS 1u  /* the receiver wakes the caller with its reply */
#define CHANNELS 64

#define QUESTION_REGISTERS 15
/* A question for the host about one call. */
struct question {
    u32 state; /* QUESTION_* in two bits, then a number; a guest claims and frees it, the host answers */
    u32 tid, pid;
    u32 rule; /* index; ~0: by the policy object */
    u64 number, arguments[6], site;
    u64 registers[QUESTION_REGISTERS]; /* of the guest at the call: struct orbit_registers up to rip */
    u64 pad1;
    i64 result;  /* written by the host */
    u32 verdict; /* written by the host: 0 pass, 1 result, 2 it has no answer */
    u32 pad;
    char path[256]; /* the first string argument, cut; empty: none */
};
#define QUESTION_FREE 0
#define QUESTION_FILLING 1
#define QUESTION_ASKED 2
#define QUESTION_ANSWERED 3
#define QUESTIONS 64

/* What the host asks of a thread, and its registers while it is stopped. One for each slot. */
struct inspection {
    u32 command; /* COMMAND_*; written by the host */
    u32 state;   /* INSPECT_*; written by the guest */
    u32 busy;    /* odd while a function of the policy object runs; written by the guest */
    u32 pad;
    u64 registers[18]; /* struct orbit_registers; by the guest at a stop, then by the host */
    u64 pad1[12];
};
#define COMMAND_RUN 0
#define COMMAND_STOP 1
#define COMMAND_STEP 2
#define INSPECT_RUNS 0
#define INSPECT_STOPPED 1

/* The host's signals to a thread: SIGSYS with SI_QUEUE and one of these values. Timers use TICK. */
#define VALUE_STOP 0x6f72626974001ul
#define VALUE_LIMIT 0x6f72626974002ul
#define VALUE_TICK 0x6f72626974003ul

/* Sites whose calls came by signal, by the files they are in: see hints.c. Guests write them. */
struct hinted_site {
    u32 offset; /* of the syscall instruction in the file; 0: none */
    u16 number; /* of the call */
    u16 calls;  /* by signal, of all processes */
};
#define HINTED_SITES 128
struct hinted_file {
    struct hinted_site sites[HINTED_SITES];
};
#define HINTED_FILES 32

struct extension_memory {
    struct channel channels[CHANNELS]; /* at a page */
    struct question questions[QUESTIONS];
    u8 share[65536]; /* between policy objects and the host */
    struct inspection inspections[MAX_SLOTS];
    u32 hint_generation; /* raised with each site that is worth rewriting before its first call */
    u32 pad[15];
    u64 hinted[HINTED_FILES]; /* identity of the file of each of `hinted_files`; 0: none */
    struct hinted_file hinted_files[HINTED_FILES];
};
#define extension ((volatile struct extension_memory *)(SHARED_ADDRESS + EXTENSION_OFFSET))

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
#define RECORD_NOTE 6   /* a policy acted: i64 rule index, i64 action; the policy object: -1, its value */

struct blob {
    u16 argument;
    u16 length; /* bytes that follow, then padding to a multiple of 8 */
    u32 flags;
};
#define BLOB_CUT 1 /* there was more */

#define shared ((volatile struct shared_memory *)SHARED_ADDRESS)
#define count_stat(which) __atomic_add_fetch(&shared->stats[which], 1, __ATOMIC_RELAXED)

#endif
