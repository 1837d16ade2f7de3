/* What the parts of the library share among themselves. */
#pragma once
#include "side.h"
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))

/* The shared memory; all 0 where this process is not kept. `orders` is mapped read-only. */
extern const volatile struct keep_orders *keep_orders HIDDEN;
extern volatile struct keep_news *keep_news HIDDEN;
extern volatile struct keep_both *keep_both HIDDEN;
extern unsigned char *keep_log HIDDEN; /* mapped twice in a row, so that no entry is cut */
/* Of the handler: never rolled back, so it outlives a rollback that is broken off. */
extern unsigned char *keep_stack HIDDEN;

/* 1 in the thread whose calls are logged. */
extern __thread int keep_serves HIDDEN __attribute__((tls_model("initial-exec")));

/* 1 in the serving thread from where a logged call begins until its entry is in the log. */
extern __thread int keep_under_way HIDDEN __attribute__((tls_model("initial-exec")));

/* A fatal signal that another process sent meanwhile: it comes again when the entry is in the log.
 * Without that, what the kernel has done would be missing there, and be done twice. 0: none. */
extern __thread int keep_deferred HIDDEN __attribute__((tls_model("initial-exec")));
extern __thread siginfo_t keep_deferred_info HIDDEN __attribute__((tls_model("initial-exec")));
/* Sends this thread a signal as it came, its sender included. */
extern void keep_send(int sig, const siginfo_t *info) HIDDEN;

/* Faults that this thread has asked to block, as it sees its mask; they stay open. */
extern __thread uint64_t keep_seen_blocked HIDDEN __attribute__((tls_model("initial-exec")));

/* 1 from where this thread begins to fork until that is done in parent and child: the child does
 * not have the shared memory of its parent. */
extern __thread int keep_forks HIDDEN __attribute__((tls_model("initial-exec")));

/* Not 0 while this thread is in the allocator. */
extern __thread int keep_in_heap HIDDEN __attribute__((tls_model("initial-exec")));

/* libc's own, found at the start. */
extern int (*keep_clock_gettime)(clockid_t, struct timespec *) HIDDEN;
extern int (*keep_sigaction)(int, const struct sigaction *, struct sigaction *) HIDDEN;

/* Makes a system call, or answers -EINTR when a signal is deferred; answers errors as negative
 * numbers. The keeper knows the address of its instruction, keep_syscall: a thread that it finds
 * there, not done yet, can be made to ask again. From keep_check to keep_syscall the call has not
 * been made. */
extern long keep_raw(long nr, long a, long b, long c, long d, long e, long f) HIDDEN;
extern char keep_check[] HIDDEN, keep_syscall[] HIDDEN;
/* As keep_raw, for calls that are never asked again. */
extern long keep_plain(long nr, long a, long b, long c, long d, long e, long f) HIDDEN;

/* Where a logged call leaves bytes in the program's memory. */
struct keep_out {
    void *at;
    size_t bytes;
};

/* How many of the bytes of `out` a call has written. */
enum keep_fill {
    FILL_NONE,
    FILL_RETURNED, /* as many as it returned */
    FILL_EVENTS,   /* 12 for each event returned (epoll) */
    FILL_ALL,      /* all, unless it failed */
    FILL_CUT,      /* all, if it was cut short by a signal */
};

#define KEEP_OUTS 6

struct keep_call {
    long nr;
    long arg[6];
    uint32_t log_nr;
    int fd;
    enum keep_fill fill;
    int is_fresh;    /* its answer is never taken from the tail: clocks, states of files */
    int is_opaque;   /* what it leaves in memory is not known: a replay that comes to it is not proven */
    int timeout_arg; /* index of a timeout in ms plus 1; 0: none */
    int outs;
    const struct keep_out *many; /* not NULL: in place of `out` */
    struct keep_out out[KEEP_OUTS];
    uint64_t hash;
};

static inline const struct keep_out *keep_outs(const struct keep_call *call)
{
    return call->many ? call->many : call->out;
}

/* Makes the call, or answers it from the log, and logs it. Answers errors as negative numbers. */
extern long keep_logged(struct keep_call *call) HIDDEN;
/* Makes the call in a thread that does not serve, which may be cancelled there as in libc's own
 * function. */
extern long keep_call_of_other(const struct keep_call *call) HIDDEN;
/* The same as keep_logged, without regard to the moments of a request. */
extern long keep_log_call(struct keep_call *call) HIDDEN;
/* Whether the call is one of those that the rule names. */
extern int keep_matches(const struct keep_call *call, const volatile struct keep_rule *rule) HIDDEN;
/* Locks of this kind (KEEP_LOCK_...) were taken, or released: then `taken` is negative. */
extern void keep_note_lock(uint32_t kind, int taken) HIDDEN;
/* A mutex between processes is about to be locked: 1 if a request begins there; then
 * keep_lock_begun follows. */
extern int keep_lock_begins(void) HIDDEN;
extern void keep_lock_begun(int is_taken) HIDDEN;
/* This process has waited for no request yet: it was forked just now. */
extern void keep_no_request(void) HIDDEN;
/* Waits, bounded, until the keeper asks for something else than `asked`. */
extern void keep_park(uint32_t asked) HIDDEN;
/* Begins a call that is not a system call (a fork, a clock): 1 when `*ret` is its answer from
 * the log. Else make it and end with keep_end. */
extern int keep_begin(struct keep_call *call, long *ret) HIDDEN;
extern void keep_end(struct keep_call *call, long ret) HIDDEN;
/* Reads the clock and logs it, if the program is being recorded and nothing else is to be done;
 * else 0, and nothing was done. */
extern int keep_record_clock(clockid_t clock, struct timespec *to) HIDDEN;
/* In place of keep_end: the call was not made after all. */
extern void keep_cancel(void) HIDDEN;
extern uint64_t keep_hash(uint64_t hash, const void *at, size_t bytes) HIDDEN;

/* Whether calls of this thread are logged, or answered from the log. */
extern int keep_is_logging(void) HIDDEN;

/* Signals that the program handles, in a log: see deliver.c. The queue lies in the shared
 * memory; 1 in a thread for which one has come. */
extern struct keep_signals *keep_signals HIDDEN;
extern __thread int keep_signals_wait HIDDEN __attribute__((tls_model("initial-exec")));
/* The process that the log is of. */
extern int keep_own_pid HIDDEN;
/* Takes the oldest one out; 0: there is none. */
extern int keep_take_signal(struct keep_waiting *to) HIDDEN;
/* Puts one in; 0: there is no room. */
extern int keep_put_signal(int sig, const void *info) HIDDEN;
/* Runs the program's handler. */
extern void keep_handle(const struct keep_waiting *waiting) HIDDEN;
extern int keep_set_action(int sig, const struct sigaction *action, struct sigaction *before) HIDDEN;
extern void keep_own_actions(void) HIDDEN;

/* Bytes of the log that are kept free for entries that cannot wait for room. */
#define KEEP_LOG_RESERVE (1u << 20)

static inline struct keep_entry *keep_entry_at(uint64_t position)
{
    return (struct keep_entry *)(keep_log + (position & (keep_orders->log_bytes - 1)));
}

static inline uint64_t keep_size_of(const struct keep_entry *entry)
{
    uint64_t bytes = entry->bytes;
    uint64_t most = keep_orders->log_space / 4;
    return sizeof *entry + (((bytes < most ? bytes : most) + 7) & ~7ull);
}

/* A mutex of the program's own memory that this thread has locked, and libc's functions for it. */
struct keep_mutex {
    pthread_mutex_t *mutex;
    int (*lock)(pthread_mutex_t *);
    int (*unlock)(pthread_mutex_t *);
};
/* Whether locks of this thread have an order in the log: see turns.c. */
extern int keep_has_turns(void) HIDDEN;
/* Logs that the mutex is locked, or, in a replay, lets those have it first who had it before. */
extern void keep_take_turn(const struct keep_mutex *of) HIDDEN;

/* What other threads than the serving one have done: see once.c. */
extern volatile struct keep_calls_done *keep_done HIDDEN;
/* close, fsync or fdatasync of such a thread. Answers errors as negative numbers. */
extern long keep_call_once(long nr, int fd) HIDDEN;
extern void keep_note_opened(int fd, int is_by_server) HIDDEN;

extern int keep_keeper_lives(void) HIDDEN;
extern void keep_ring(void) HIDDEN;
/* Forgets the keeper: this process is not kept (a child of fork). */
extern void keep_forget(void) HIDDEN;
/* Notes how the keeper has named the library and the shared memory, for programs that this one
 * executes. */
extern void keep_note_names(const char *preload, const char *shared) HIDDEN;
/* Reports what `code` (KEEP_LEFT, KEEP_ENDED) says of a replay, and waits for the keeper. 1: it is
 * proven; 0: the keeper is gone. Else it does not return. */
extern int keep_report_replay(int code) HIDDEN;
/* Dies of the signal that is being recovered from. */
extern void keep_die(void) HIDDEN __attribute__((noreturn));
/* A replay that touches nothing outside: see confined.c. From here on, if the keeper has asked for
 * it; not any more. */
extern void keep_confine(void) HIDDEN;
extern void keep_unconfine(void) HIDDEN;
/* Whether the signal is a call that the kernel has handed over, and what is done with it. */
extern int keep_is_dispatched(int sig, const siginfo_t *info) HIDDEN;
extern void keep_dispatch(void *context) HIDDEN;
/* The call's answer where the input that it brought is left out; 0: it is made. See drop.c. */
extern int keep_leave_out(const struct keep_call *call, long *ret) HIDDEN;
/* Whether the replay has left files open whose next output would go elsewhere, or has taken lines
 * to be written that may not be. */
extern int keep_is_unsure(void) HIDDEN;
/* Calls that a thread makes with its own registers, and where each continues. */
extern char keep_itself[] HIDDEN;
extern uint64_t keep_back[] HIDDEN;
/* Where the library's own system calls lie; the end of a handler there. */
extern char keep_text[] HIDDEN, keep_text_end[] HIDDEN, keep_handler_end[] HIDDEN;
/* Signals that no thread blocks: faults, and SIGSYS of a call that is handed over. */
#define KEEP_BIT(sig) (1ull << ((sig) - 1))
#define KEEP_OPEN_SIGNALS \
    (KEEP_BIT(SIGSEGV) | KEEP_BIT(SIGBUS) | KEEP_BIT(SIGILL) | KEEP_BIT(SIGFPE) | (keep_log ? KEEP_BIT(SIGSYS) : 0))
/* The handler for fatal signals, as the keeper looks for it in the kernel. */
extern void *keep_handler(void) HIDDEN;
/* Puts our handlers for fatal signals in place, and takes them away again. */
extern void keep_arm(void) HIDDEN;
extern void keep_disarm(void) HIDDEN;
/* In a child of fork, which has our handlers already: their stack. */
extern void keep_rearm(const unsigned char *before) HIDDEN;
