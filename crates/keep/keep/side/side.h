/* The memory that the program and its keeper share, as the program's side sees it.
 * crates/keep/keep/src/layout.rs has the same structures; a test compares sizes and offsets.
 *
 * Nothing here is ever rolled back. The keeper trusts nothing that the program can write: it reads
 * a word once, checks it against what it counts itself, and follows no position that it has not
 * checked.
 *
 * Invariants, while the program is not stopped by the keeper:
 *   oldest <= cursor <= head <= oldest + log_bytes      (positions only grow; a position modulo log_bytes is an offset)
 *   log_bytes <= log_space; log_bytes grows only at a checkpoint, which then is the oldest
 *   an entry at position p is whole when p < head
 *   busy > 0 exactly while the serving thread is between the start of a logged call and the end of
 *   its log entry
 */
#pragma once
#include <stdint.h>

enum {
    KEEP_MAGIC = 0x5045454b, /* "KEEP" */
    KEEP_VERSION = 7,
};

/* The logged calls' result that stands for "this call was interrupted by the keeper: ask again".
 * No error of the kernel. */
#define KEEP_AGAIN (-1000)

/* Stands for "a handler of the program is to run first". No error of the kernel. */
#define KEEP_SIGNALLED (-1001)

/* keep_both.mode */
enum {
    KEEP_OFF = 0,    /* calls pass unlogged */
    KEEP_RECORD = 1, /* calls are made and logged */
    KEEP_REPLAY = 2, /* calls are answered from the log, in its order */
    KEEP_TAIL = 3,   /* calls that the log still holds for the same descriptor are answered from it, others are made */
};

/* keep_orders.moments, keep_rule.calls */
enum {
    KEEP_AT_ACCEPT = 1,
    KEEP_AT_POLL = 2,
    KEEP_AT_SELECT = 4,
    KEEP_AT_EPOLL = 8,
    KEEP_AT_READ = 1 << 4,
    KEEP_AT_READV = 1 << 5,
    KEEP_AT_RECV = 1 << 6,
    KEEP_AT_RECVMSG = 1 << 7,
    KEEP_AT_WRITE = 1 << 8,
    KEEP_AT_WRITEV = 1 << 9,
    KEEP_AT_SEND = 1 << 10,
    KEEP_AT_SENDMSG = 1 << 11,
    KEEP_AT_SENDFILE = 1 << 12,
    KEEP_AT_CLOSE = 1 << 13,
    KEEP_AT_SHUTDOWN = 1 << 14,
    KEEP_AT_LOCK = 1 << 15, /* a lock between processes is taken */
    /* Those to which `on` does not apply. */
    KEEP_WAITS = KEEP_AT_ACCEPT | KEEP_AT_POLL | KEEP_AT_SELECT | KEEP_AT_EPOLL | KEEP_AT_LOCK,
};

/* keep_rule.on */
enum {
    KEEP_ON_ACCEPTED = 1, /* a connection that was accepted */
    KEEP_ON_OTHER = 2,    /* any other descriptor */
};

/* keep_orders.locks */
enum {
    KEEP_LOCK_PTHREAD = 1, /* mutexes in shared memory */
    KEEP_LOCK_SEMOP = 2,   /* System V semaphores */
    KEEP_LOCK_FCNTL = 4,
    KEEP_LOCK_FLOCK = 8,
};

/* Calls of one kind in a request. */
struct keep_rule {
    uint32_t calls; /* a bit each: KEEP_AT_...; 0: no rule */
    uint32_t on;    /* kinds of descriptors, a bit each: KEEP_ON_...; 0: all */
};

/* keep_crash.state */
enum {
    KEEP_NO_CRASH = 0,
    KEEP_CRASHED = 1, /* a thread waits for the keeper; written by the program */
    KEEP_GIVE_UP = 2, /* it shall die of its signal; written by the keeper */
    KEEP_ACCEPT = 3,  /* its replay is proven: it continues; written by the keeper */
};

/* keep_crash.code where keep_crash.signal is 0 */
enum {
    KEEP_LEFT = 0,  /* the replay has left the log's order */
    KEEP_ENDED = 1, /* it has come to its end; nothing of it has happened outside yet */
};

/* keep_orders.family */
enum {
    KEEP_FAMILY = 1,
    KEEP_FAMILY_COMES = 2, /* a child's, whose keeper does not know it yet */
};

/* keep_orders.handlers */
enum {
    KEEP_HANDLERS_AUTO = 0,  /* first, unless they only report and die: those run when the program is given up */
    KEEP_HANDLERS_FIRST = 1, /* before each recovery */
    KEEP_HANDLERS_LAST = 2,  /* when the program is given up */
};

#define KEEP_REGS 17

/* Stacks for signals, in the shared memory one after the other: the first thread's, then those
 * of threads that are made. */
#define KEEP_MAIN_STACK (256u << 10)
#define KEEP_THREAD_STACK (32u << 10)
#define KEEP_THREAD_STACKS 512

/* Children that may begin before the keeper has made memory for another one. */
#define KEEP_SPARES 4

/* Handlers of which it is remembered how they end. */
#define KEEP_HANDLERS 8

/* Page 0. Written by the keeper only. */
struct keep_orders {
    uint32_t magic;
    uint32_t version;
    uint64_t log_bytes;   /* power of two: how much of the space is used; 0: no log */
    uint64_t stack_bytes; /* size of the signal stacks after the three pages */
    uint32_t pid;         /* the program; other processes that have the library are left alone.
                           * 0: a child's, which any may take */
    uint32_t ask;         /* futex; not 0: the serving thread parks after its next logged call */
    uint32_t keeper;      /* robust word: the keeper's thread id; the kernel adds FUTEX_OWNER_DIED when that ends */
    uint32_t replay;      /* counts rollbacks: tells entries used in this replay from others */
    uint64_t oldest;      /* first position of the log that a checkpoint needs */
    uint64_t drop_at;     /* position of the input that is answered with end of file in replay; ~0: none */
    uint64_t known_ip;    /* a crash at this address, at the end of a replay, is the one that is being recovered from */
    uint32_t handlers;    /* when the program's own handlers for fatal signals run: KEEP_HANDLERS_... */
    uint32_t keeper_pid;  /* process of the keeper: its descriptors are opened through /proc */
    uint32_t spares[KEEP_SPARES]; /* its descriptors of shared memory for children; 0: none */
    uint32_t family;      /* whether children of fork are kept: 0, KEEP_FAMILY, KEEP_FAMILY_COMES */
    uint32_t adopted;     /* spares that the keeper has replaced: fewer than KEEP_SPARES less than keep_news.claimed */
    uint32_t environment; /* not 0: allocations are padded and zeroed, frees delayed */
    uint32_t moments;     /* calls that wait for the next request, a bit each: KEEP_AT_...; 0: no request mode */
    uint32_t granted;     /* futex; keep_news.wishes when the newest checkpoint began */
    uint32_t kept;        /* futex; not 0: there is a checkpoint of the program */
    uint32_t rules;       /* not 0: this process, or one that it makes, is in request mode */
    uint32_t begins_on;   /* descriptors to which `moments` apply: KEEP_ON_...; 0: all */
    uint32_t locks;       /* that must be as at the begin for a request to have ended: KEEP_LOCK_... */
    uint32_t signal;      /* of the crash that is being recovered from: given up in its replay, it dies of that */
    struct keep_rule input; /* what brings a request; 0: all reading from sockets */
    struct keep_rule reply; /* what must not differ in a replay; 0: all writing to sockets */
    struct keep_rule ends;  /* what a request ends with; 0: no such call */
    uint64_t inside[8];     /* system calls that change nothing outside, a bit each: see confined.c */
    uint64_t since;         /* ns of the real-time clock: when the checkpoint was taken from which is replayed */
    uint64_t log_space;     /* power of two: what log_bytes can grow to */
};

/* Page 1. Written by the program only. */
struct keep_news {
    uint32_t bell;       /* futex; grows when the keeper should wake */
    uint32_t ready;      /* 1: the library is set up */
    uint32_t busy;       /* depth of logged calls of the serving thread */
    uint32_t parked;     /* 1: the serving thread waits for `ask` to become 0 */
    uint64_t syscall_ip; /* address of the syscall instruction of logged calls */
    uint32_t serving;    /* thread id of the serving thread */
    uint32_t dying_tid;  /* thread that runs a handler of the program for a fatal signal */
    uint64_t dying_sp;   /* stack pointer when that handler began; 0: no such handler runs */
    uint32_t log_lost;   /* grows each time the log was full and the keeper did not come */
    int32_t mismatch_fd; /* descriptor of the last output that differed */
    uint64_t mismatched; /* outputs to sockets that differed from what was sent before the crash */
    uint64_t diverged;   /* replays that left the log's order */
    uint64_t replayed;   /* calls answered from the log, since the library was set up */
    int32_t dropped_fd;  /* descriptor of the input dropped last; -1: none */
    uint32_t is_last;    /* 1: that handler was installed for one signal only (SA_RESETHAND): the
                          * program ends after it */
    uint32_t claimed;    /* spares taken for children, one after the other */
    uint32_t has_waited; /* 1: the serving thread has waited for input (epoll_wait, poll, select,
                          * accept) or signals (nginx' first process): its start is over */
    uint32_t asked_nr;   /* the call that left the log's order, and its descriptor; what the log has there */
    int32_t asked_fd;
    uint32_t logged_nr;
    int32_t logged_fd;
    uint32_t pid;        /* in a child's: its process id, 0 until it has begun */
    uint32_t children;   /* children made that are not kept */
    uint32_t wishes;     /* checkpoints that the program has asked for */
    uint32_t stacks;     /* grows with each stack for signals that is set */
    uint64_t other_lines; /* outputs to files and pipes that differed from what was written before the crash */
    uint64_t called;     /* the program's handler that was called last, and the instruction at which */
    uint64_t called_ip;
    uint64_t died[KEEP_HANDLERS];    /* handlers after which the signal came again; 0: free */
    uint64_t resumed[KEEP_HANDLERS]; /* handlers after which the program continued; these win */
    uint64_t moment;     /* where the log stood when the serving thread last came to wait for a request */
    uint32_t at_moment;  /* 1: it waits there */
    uint32_t moment_count; /* how often it has come there */
    uint32_t images;     /* programs that have begun in this process: grows with each exec */
    uint32_t between;    /* 1: a request has ended and the next has not begun: a crash needs no replay */
    uint32_t failed_waits; /* grows when waits for input have failed many times in a row: the program is ruined */
    int32_t failed_errno;  /* how, negative */
    uint64_t others_read;  /* inputs from sockets that other threads have read: these are in no log */
    uint64_t text, text_end; /* the library's own system calls: these pass in a replay */
    uint64_t confined;     /* address of keep_both.confined */
    uint64_t handler;      /* address of the handler for fatal signals */
    uint64_t wanted;       /* not 0: a call waits for so many bytes of room in the log */
    uint64_t outside_at;   /* the furthest that replays had come in the log when the program did something
                            * outside by a call that is in no log */
};

/* Page 2. Written by the program, and by the keeper while the program is stopped. */
struct keep_both {
    uint32_t mode;
    uint8_t confined;    /* 1: other calls of the serving thread than ours come to confined.c */
    uint8_t is_confined; /* 1: the kernel looks at `confined` */
    uint16_t reserved;
    uint64_t head;       /* where the next entry goes */
    uint64_t cursor;     /* in KEEP_REPLAY: the next entry to answer from */
    uint64_t last_input; /* position of the last entry that brought bytes from a socket; ~0: none */
    uint64_t tail_at;    /* in KEEP_TAIL: first entry that may not be used up */
    uint64_t tail_end;
    struct keep_crash {
        uint32_t state; /* futex */
        uint32_t signal; /* 0: no crash, but what `code` says of the replay */
        int32_t code; /* si_code, or KEEP_LEFT, KEEP_ENDED */
        uint32_t tid;
        uint64_t address; /* si_addr */
        uint64_t ip, sp, bp;
        uint64_t head; /* position of the log when the crash began */
        uint64_t regs[KEEP_REGS]; /* in DWARF's order: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, rip */
    } crash;
};

/* An entry of the log, followed by `bytes` bytes, padded to 8. */
struct keep_entry {
    uint32_t nr;    /* system call, or KEEP_PEEK + call */
    int32_t fd;     /* first argument of calls on a descriptor, else a number that tells like calls apart */
    int64_t ret;    /* what the kernel answered, errors negative */
    uint32_t bytes; /* of what the call wrote into the program's memory */
    uint32_t used;  /* replay in which it was used; KEEP_DEAD: never again */
    uint64_t hash;  /* of what the program gave out */
    uint64_t jump;  /* not 0: history goes on at this position, instead of here */
};

/* Entries of signals, whose handler ran before the call that follows, or after the one before.
 * `fd` is the signal. */
#define KEEP_SIGNAL 2000u
#define KEEP_SIGNAL_AFTER 2001u

/* Signals of the serving thread whose handlers have not run yet. In page 1, from KEEP_SIGNALS_AT
 * on; the keeper does not read it. */
#define KEEP_SIGNALS 12
#define KEEP_SIGNALS_AT 2048
struct keep_signals {
    uint32_t come, taken; /* both only grow */
    struct keep_waiting {
        uint64_t signal;
        unsigned char info[128]; /* siginfo */
    } waiting[KEEP_SIGNALS];
};

/* Entries of mutexes that the serving thread has locked: `fd` is the mutex' number, `ret` how often
 * other threads had. See turns.c. */
#define KEEP_TURN 2002u

/* No entry: the call that was asked for is in no log. */
#define KEEP_UNLOGGED 2003u

/* Calls of other threads that are not made twice: see once.c. In page 2, from KEEP_DONE_AT on; the
 * keeper does not read it. */
#define KEEP_DONE 127
#define KEEP_DONE_AT 1024
struct keep_calls_done {
    uint32_t next, reserved;
    struct keep_done {
        uint32_t tid, nth; /* the nth of that thread */
        uint32_t nr;
        int32_t fd;
        int64_t ret;
    } calls[KEEP_DONE];
};

#define KEEP_DEAD 0xffffffffu
#define KEEP_PEEK 1000u
#define KEEP_PAGE 4096u
#define KEEP_NOWHERE (~0ull)
