/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * orbit.h: auxiliary tasks in address spaces of their own.
 *
 * Words. main: your program. orbit: one auxiliary task, a process of its own that runs functions of
 * your program when main calls it. area: memory of main whose objects an orbit is shown, at the
 * same addresses. call: one invocation.
 * snapshot: the state of the named areas at the moment of a call; that is what the task sees.
 * update: what a task hands back: data, modifications, operations; main checks it and applies it,
 * or does not.
 *
 * The words are those of "orbit" (OSDI '22); section numbers below are that paper's. orbit_paper.h
 * has its interface as printed: Table 1, and the listings of its figures. Here it differs, so that
 * no failure passes for a value and no task decides what main does:
 * - orbit_call returns 0 or -errno; the task's value, or how it failed, is in the outcome.
 * - Entries take the store first, then the arguments (ORBIT_ARGS_FIRST turns them round).
 * - Bytes have a size; updates are handles, to be freed; pull_orbit says whether there is one.
 * - Main registers each function that tasks may ask for (orbit_register_operation).
 * - A snapshot is copied: it takes memory and time for what was written since the last one.
 *
 *     static long check(void *store, void *args) {          // runs in the orbit
 *         struct account *a = *(struct account **)args;
 *         return a->balance < 0;
 *     }
 *     struct orbit *checker = orbit_create("checker", check, NULL);
 *     struct orbit_area *area = orbit_area_create(4096, NULL);
 *     struct account *a = orbit_alloc(area, sizeof *a);
 *     ...
 *     struct orbit_outcome end;
 *     if (orbit_call(checker, 1, &area, NULL, &a, sizeof a, &end) < 0)
 *         log(orbit_last_error());                          // "crashed: SIGSEGV at 0x0 in check (account.c:12)"
 *
 * What a task has of main and what not, where to set up, what it costs: docs/adopting.md.
 *
 * Build: cc prog.c $(pkg-config --cflags --libs orbit). Linux on x86-64.
 *
 * Errors. A function that gives an int or long gives a negative errno value when it fails; one that
 * gives a pointer gives NULL and sets errno. Either way orbit_last_error() has a sentence that
 * names the thing, the value, the limit and the way out. A failed function has changed nothing
 * unless it says otherwise. The numbers, everywhere the same:
 *
 *     EINVAL       an argument makes no sense: NULL, misaligned, out of range, unknown flag
 *     EBADF        not a handle of this kind, or one that was freed or destroyed
 *     EFAULT       an address that is in no area, or that no memory can have
 *     EALREADY     the object is free already (double free)
 *     ENOSPC       the area, the log or the queue has no room left
 *     E2BIG        more bytes than this function takes
 *     ENOENT       nothing answers to this name, number or function
 *     EOPNOTSUPP   this machine, user or build cannot do it
 *     ENODEV       the orbit or area is gone for good
 *     EHOSTDOWN    the orbit has ended and was not started again within the call's deadline, or one second (down_wait_us); the
 *                  sentence says why the last start failed; orbit_wait_ready waits for it
 *     ECHILD       the handle was made by the process that this one was forked from
 *     EAGAIN       a limit of descriptors, processes or memory was reached
 *     EACCES       the orbit, or the operation, lacks the privilege
 *     EPERM        only an orbit may do this, or only main may; or the kernel does not permit it
 *     ESTALE       the old bytes of a conditional modification no longer stand there
 *
 * and, of calls, how they ended (see struct orbit_outcome): EREMOTEIO crashed, EOWNERDEAD killed or
 * exited, ENOMEM out of memory, EDEADLK stuck on a lock, ETIMEDOUT, ECANCELED; EINPROGRESS not
 * ended yet.
 *
 * Handles (struct orbit *, struct orbit_area *, struct orbit_future *, struct orbit_update *) are
 * looked up, never followed: any value may be passed for one and gives an error at worst. Other
 * pointers must be what they say they are, as in the C
 * library: NULL, and addresses where nothing can be mapped, give an error; the rest is read or
 * written.
 *
 * Descriptors. Of main's descriptors an orbit has the standard streams and what it is passed
 * (pass_fds). Every other number that main has at the set-up, and each below 256 (a quarter of
 * ulimit -n, if that is less), is occupied in orbits by something on which reading, writing,
 * mapping, seeking and ioctl fail with EBADF: a task that uses a descriptor of main's meets no
 * other file in its place. Only fstat, dup, fcntl and close succeed on it. Files that a task opens
 * have higher numbers.
 *     int log = open("audit.log", O_WRONLY | O_APPEND);
 *     struct orbit_options options = ORBIT_OPTIONS_INIT;
 *     options.entry = check, options.pass_fds = &log, options.pass_fd_count = 1;
 *     struct orbit *checker = orbit_create_with(&options);       // a task may write(log, ...)
 * The library's own descriptors in main lie at 1088 and above (from three quarters of ulimit -n on,
 * if that is less); those of orbit_future_fd from 512. Best close what your program has inherited
 * before the set-up. If it closes the library's descriptors later, the library opens others: orbits
 * are started again as after a crash, and one that cannot be, since what it shares with main is
 * gone, gives ENODEV and a sentence that says so. No file of yours that has such a number is read,
 * written or closed.
 *
 * Threads: every function may be called from any thread at any time, also on the same handle,
 * unless it says otherwise. Freeing a handle that another thread uses is safe: the other one
 * finishes. Not from signal handlers.
 * Signals: waits continue when a signal handler of yours has run. The library's one thread in main
 * takes no signals. A main that has threads when the library is set up, or makes a new template
 * (for code loaded later, or after the old one died), gets a SIGCHLD for a child that the library
 * reaps; a main with one thread gets none.
 * fork: a child has none of its parent's orbits, areas or futures (ECHILD), and may make its own.
 * Objects in the parent's areas are ordinary memory there, copied by the fork: to be read and
 * written, not to be freed or grown (ECHILD as well).
 * exec: nothing is inherited, but for one zombie where main had one thread and held more than 32
 * MiB, or adopts orphans, when the library was set up: a plain wait does not see it, one with
 * __WALL reaps it.
 * Blocking: functions that wait say so; all others take microseconds, orbit_init and the first
 * orbit_create some milliseconds.
 * The library prints nothing and never ends your program.
 */
#ifndef ORBIT_H
#define ORBIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORBIT_VERSION "0.1.0"

struct orbit;        /* an orbit, as main holds it */
struct orbit_area;   /* an area */
struct orbit_future; /* a call that was made */
struct orbit_update; /* what a task hands back */

/* What an orbit runs, in its own process. store: what the init function gave (NULL without one);
 * args: a copy of the caller's bytes, aligned to 16, which the function may write to; NULL if there
 * were none. The objects of the areas named in the call are there at their addresses, as they were
 * at the call. What the function writes to them stays in the orbit and is gone at the next call;
 * what it keeps in its store, or in other memory of its own, stays until the orbit ends. A task may
 * lock its memory (mlock, mlockall); that of areas is unlocked again between calls.
 * One that calls exit() ends the orbit (ORBIT_EXITED): functions that the task registered run, and
 * its output is written. Functions that main registered with atexit do not run in it, and what
 * stood in main's stdio buffers when the library was set up is written by main only. */
typedef long (*orbit_entry)(void *store, void *args);

/* A function of main that a task may ask for in an update. args: a copy of the bytes that came with
 * the request, aligned to 16, chosen by the task: check len and every value before use. What
 * it returns is ignored. It must not longjmp out. One in C++ should not throw; what it throws
 * passes through orbit_apply, to whoever called that. */
typedef long (*orbit_operation)(void *args, size_t len);

/* A thread that is cancelled (pthread_cancel) in a call of the library ends at its next
 * cancellation point after that call. Do not ask for asynchronous cancellation in such a thread. */

/* ---- set-up and errors ----------------------------------------------------------------------- */

/* What orbits have of memory that main shares with other processes (MAP_SHARED of a file, of
 * /dev/shm or anonymous; System V) when the library is set up: buffers and scoreboards of servers
 * with several processes. What is mapped so later, orbits do not have. Without /proc it is not
 * known, and left writable. */
enum orbit_shared_memory {
    /* They read it, as it is at the moment. A task that writes there crashes (ORBIT_CRASHED), and
     * the outcome's text says so; a system call that writes there gives EFAULT. A lock that lies
     * there cannot be taken by a task. */
    ORBIT_SHARED_READ_ONLY = 0,
    /* they write it too: a task can damage what other processes rely on */
    ORBIT_SHARED_WRITABLE = 1,
    ORBIT_SHARED_ABSENT = 2    /* they have none of it: reading is such a crash as well */
};

/* How the library is set up; begin with ORBIT_CONFIG_INIT. */
struct orbit_config {
    size_t size;      /* sizeof(struct orbit_config) */
    /* address space to reserve for areas, bytes; 0: 64 GiB; costs no memory; less where there is
     * less */
    size_t window;
    /* processes cloned ahead of need, so that making an orbit is a hand-over; 0 to 16 */
    uint32_t spares;
    /* how long a busy orbit polls for its next call before it sleeps, microseconds; 0: never */
    uint32_t spin_us;
    /* enum orbit_shared_memory: what orbits have of memory that main shares with other processes */
    int shared_memory;
    int flags;      /* 0 or ORBIT_KEEP_OOM_SCORE */
};
/* A flag of struct orbit_config: orbits keep main's oom_score_adj. Without it theirs is 1000: out
 * of memory, the kernel kills them before any other process. */
#define ORBIT_KEEP_OOM_SCORE 1
#define ORBIT_CONFIG_INIT { sizeof(struct orbit_config), 0, 1, 50, 0, 0 }

/* Sets the library up, if it is not yet. Best called early in main(), while there is one thread and
 * little memory: orbits are clones of the program as it is now, and keep the rights (user, groups,
 * capabilities) it has now: give rights up before, or know this. Calling it is not required. 0 or
 * -errno (EAGAIN, EOPNOTSUPP; EPERM in an orbit). */
int orbit_init(void);
/* The same with a configuration. EINVAL if the library is set up already. */
int orbit_init_with(const struct orbit_config *config);
/* Ends all that the library keeps: every orbit, as orbit_destroy does, the processes made ahead of
 * need, its thread. Blocks until they have ended, some milliseconds. Handles stay safe: calls on
 * orbits give ENODEV, futures have ended as cancelled; areas and objects stay as they are. What is
 * left of an orbit (four descriptors) goes with its handle, by orbit_destroy. Afterwards
 * orbit_init, or the first orbit_create, sets the library up anew. For plugins, before they are
 * unloaded, and for whoever wants no process left. 0, also when nothing is set up; EPERM in an
 * orbit. */
int orbit_shutdown(void);

/* 1 in an orbit, 0 in main. */
int orbit_is_orbit(void);
/* The sentence of this thread's last failure, "" if there was none. The pointer is good as long as
 * the thread lives; the next failure in this thread overwrites what is there. Waits that report a
 * failed task leave its text here too. */
const char *orbit_last_error(void);
/* A phrase for an error number, negative or positive. Valid until the thread's next call of it. */
const char *orbit_strerror(int error);
/* The library's version, as ORBIT_VERSION was when it was built. */
const char *orbit_version(void);

/* ---- orbits (sections 3, 4.1, 4.2) ----------------------------------------------------------- */

/* What an orbit may use; begin with ORBIT_LIMITS_INIT, which limits nothing. With a control group
 * (root, or one that was delegated) memory and CPU hold exactly; without, memory by RLIMIT_DATA
 * (needs /proc) and the CPU share by a nice value. */
struct orbit_limits {
    size_t size;           /* sizeof(struct orbit_limits) */
    uint64_t memory;       /* bytes of memory of its own, at least 1 MiB; 0: no limit */
    /* CPU time in percent of one CPU: 50 is half a CPU, 200 two; 0: no limit */
    uint32_t cpu_percent;
    int set_nice;          /* not 0: the next field counts */
    int nice;              /* -20 (most urgent) to 19; below main's own it takes CAP_SYS_NICE */
    uint32_t cpu_count;    /* numbers in cpus; 0: any CPU */
    const uint32_t *cpus;  /* the CPUs it may run on, 0 to 1023 */
};
#define ORBIT_LIMITS_INIT { sizeof(struct orbit_limits), 0, 0, 0, 0, 0, NULL }

enum orbit_restart {
    /* at once after the first failures in a row, then after pauses that double */
    ORBIT_RESTART_ON_FAILURE = 0,
    ORBIT_RESTART_NEVER = 1,      /* it stays down; calls fail with ENODEV */
    ORBIT_RESTART_ALWAYS = 2      /* at once, always */
};
enum orbit_pending {
    ORBIT_PENDING_FAIL = 0, /* calls that wait behind the one that failed are cancelled */
    /* They run in the orbit's next process, each on its own snapshot, if that can still be given;
     * else they are cancelled too. What the process that failed has written to its copies of areas
     * counts for nothing: the next one gets them anew from the areas, and pages that waiting calls
     * brought along from there. So a call is cancelled if a page has changed since it was made,
     * unless the call itself, or a waiting call before it, brought that page along; if it waits
     * with or behind one whose large snapshot was not written yet; if the orbit has let go of an
     * area since (orbit_detach); or if the orbit's template was killed, and the next one lacks the
     * function of the call, which main has unloaded. */
    ORBIT_PENDING_KEEP = 1
};
enum orbit_when_full {
    /* a call waits until the queue and the log have room; at its deadline ETIMEDOUT */
    ORBIT_FULL_BLOCK = 0,
    /* it fails with ENOSPC; nothing is lost, its pages go with the next call */
    ORBIT_FULL_FAIL = 1,
    /* It takes the place of all calls that wait and have not begun: they are cancelled, and it is
     * queued at once. If even that makes no room: ENOSPC, and none is cancelled. Only calls whose
     * large snapshot a copier holds leave their room no sooner than the orbit comes to them: then
     * these are cancelled, and the call blocks, until its deadline at most. */
    ORBIT_FULL_DROP_OLDEST = 2
};
/* Flags of struct orbit_options. */
/* the task may push data, but no modifications and no operations (section 4.5: not privileged) */
#define ORBIT_DATA_ONLY 1u
/* its functions, entries of calls too, take the arguments first and the store second (section 4.1;
 * see orbit_paper.h) */
#define ORBIT_ARGS_FIRST 2u

/* How an orbit is made; begin with ORBIT_OPTIONS_INIT and set name and entry. */
struct orbit_options {
    size_t size;                       /* sizeof(struct orbit_options) */
    /* shown in messages; its first 15 bytes are the process's name; NULL: "orbit" */
    const char *name;
    /* what calls run: code of the program or of a library loaded now */
    orbit_entry entry;
    /* run once in each process of the orbit; gives the store; may be NULL */
    void *(*init)(void);
    const struct orbit_limits *limits; /* NULL: none */
    int restart;                       /* enum orbit_restart */
    int pending;                       /* enum orbit_pending */
    int when_full;                     /* enum orbit_when_full */
    uint32_t flags;                    /* ORBIT_DATA_ONLY, ORBIT_ARGS_FIRST, or 0 */
    uint64_t first_pause_us;           /* pause after the fourth failure in a row; 0: 1000 */
    uint64_t longest_pause_us;         /* 0: one second */
    uint32_t give_up;                  /* failures in a row after which it stays down; 0: never */
    uint32_t alter_count;              /* areas in alters; 0: its updates may modify every area */
    struct orbit_area *const *alters;  /* the only areas that its updates may modify */
    /* deadline of calls that have none of their own, microseconds. 0: NONE: a task that loops for
     * ever holds its call, and all behind it, for ever. Give one well above what calls take */
    uint64_t deadline_us;
    /* shared memory for snapshots on their way, bytes, all in use from the start: rounded up to 256
     * KiB or the next power of two; 0: 1 MiB; more than 1 GiB: E2BIG */
    size_t log_size;
    /* descriptors of main that the orbit has too, under the same numbers, from its first process to
     * its last: the same open files, with one offset and one lock for both sides; main may close
     * its own after orbit_create_with. One that is not open: EINVAL; more than 1,024: E2BIG */
    const int *pass_fds;
    uint32_t pass_fd_count;            /* descriptors in pass_fds */
    uint32_t reserved;                 /* 0 */
    /* how long a call that has no deadline waits for the orbit while it is down and about to be
     * started again, before it gives EHOSTDOWN; 0: one second. Others wait until their deadline */
    uint64_t down_wait_us;
    /* how long a task may sleep on a lock in an area that was held in the snapshot before the orbit
     * is ended (ORBIT_STUCK); 0: one second; UINT64_MAX: for ever, or until its deadline. Counted
     * from when it is first seen asleep there: orbits are checked once a second */
    uint64_t stuck_us;
};
#define ORBIT_OPTIONS_INIT \
    { sizeof(struct orbit_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, NULL, 0, 0, 0, 0 }

/* Makes an orbit (section 4.2). name: NULL is "orbit". init: run once in the orbit's process, and
 * again after each restart, gives the store; NULL: none. Returns when the process exists; init runs
 * meanwhile. NULL on failure: EINVAL (no entry, or no code at its address), EAGAIN, EPERM (in an
 * orbit).
 * The entry may be of a plugin: the orbit runs the code that is loaded when it is made, and so do
 * its later processes after restarts, also when the program has unloaded the plugin since, or
 * loaded another one in its place. To run the other one make another orbit. */
struct orbit *orbit_create(const char *name, orbit_entry entry, void *(*init)(void));
/* The same with options. */
struct orbit *orbit_create_with(const struct orbit_options *options);
/* Ends an orbit: its process is killed, waiting calls are cancelled, the handle is void. Blocks
 * until the process has ended. Futures of its calls stay valid. -errno (EPERM, EPIPE, EAGAIN,
 * ETIMEDOUT) if the process could not be ended. */
int orbit_destroy(struct orbit *orbit);
/* Kills the orbit's process. The running call ends with ORBIT_KILLED; what follows says the restart
 * policy. -errno if it could not be killed: neither by main nor by the template, which has the
 * rights main had at set-up. */
int orbit_kill(struct orbit *orbit);
/* Blocks until the orbit's process has run its init function, or this many microseconds
 * (ETIMEDOUT). */
int orbit_wait_ready(struct orbit *orbit, uint64_t timeout_us);
/* Changes the limits, of the running process too as far as the kernel allows; where that has just
 * ended, of the next one. Waits while it is just starting, until it has taken the limits that it
 * was started under, at most a second. On an error some of the new ones may hold. EBUSY: it uses
 * more memory already. NULL: no limits. */
int orbit_set_limits(struct orbit *orbit, const struct orbit_limits *limits);
/* The orbit lets go of an area, which may then be destroyed. A later call may name it again. While
 * the orbit is down this cancels the calls that wait (ORBIT_PENDING_KEEP). */
int orbit_detach(struct orbit *orbit, struct orbit_area *area);

/* What an orbit has done so far. */
struct orbit_counters {
    uint64_t calls;       /* made */
    uint64_t failed;      /* of these, ended otherwise than by returning */
    uint64_t crashes;     /* times its process ended by itself or was killed */
    uint64_t restarts;    /* times it was started again */
    uint64_t pages;       /* pages of snapshots sent to it */
    uint64_t copiers;     /* calls whose snapshot a one-shot child held, being large */
    uint64_t updates;     /* received */
    uint64_t bad_updates; /* rejected since they made no sense */
    uint32_t pending;     /* calls that wait or run now */
    int32_t pid;          /* its process now, 0 while it is down */
    /* of orbit_call, which nobody pulled and newer ones needed the room of; see orbit_pull */
    uint64_t dropped_updates;
    /* of the restarts, since a call had left threads running: those that wait run in the next */
    uint64_t left_threads;
    uint64_t reserved[4];     /* 0 */
};
int orbit_stats(struct orbit *orbit, struct orbit_counters *stats);

/* ---- areas and objects (section 4.3) --------------------------------------------------------- */

/* How an area's written pages are found. All mean the same; they differ in cost and in what they
 * need. But TRACK, and so AUTO and FORK, do not see what the kernel or a device writes to pages
 * that it holds pinned, without a fault: registered buffers of io_uring, RDMA, asynchronous
 * O_DIRECT reads. Take COMPARE or COPY for areas that are written so. */
enum orbit_engine {
    ORBIT_ENGINE_AUTO = 0,    /* chosen by size and by what the kernel offers */
    /* userfaultfd and PAGEMAP_SCAN (Linux 6.7); EOPNOTSUPP where they are not available */
    ORBIT_ENGINE_TRACK = 1,
    ORBIT_ENGINE_COMPARE = 2, /* compared with a copy; works everywhere; as much memory again */
    /* every page with each call: for a few pages that change all the time (section 4.6.2) */
    ORBIT_ENGINE_COPY = 3,
    /* as AUTO, and a one-shot child sends them: for calls that change very much */
    ORBIT_ENGINE_FORK = 4,
    /* The area's memory is a file that orbits map too: a call sends nothing and takes about 0.1 ms
     * whatever the size, and there is one copy of what neither side has written since. Linux 5.13,
     * 6.7 to be fast. Only when asked for:
     * - What main wrote during calls is merged at the next call that finds none in flight, if main
     *   has one thread and no io_uring, or the call says ORBIT_QUIET; or by orbit_area_merge. Else
     *   calls send it: ENOSPC when that is more than the orbit's log holds.
     * - No O_DIRECT input into the area may be on its way at a call: main would lose it. Buffers
     *   there that an io_uring has registered, or pinned memory of an unknown place, fail the call.
     * - madvise(MADV_DONTNEED) does not zero there; freed memory goes back to the kernel with the
     *   area; no locks between processes (PTHREAD_PROCESS_SHARED) there.
     * - A child of fork() has the area as ordinary memory; after a fork the library copies the
     *   whole area beside main's work, about a second a GiB. Until then calls send what main wrote;
     *   one for which that is too much waits. A child of a raw clone does not have the area:
     *   touching it is a SIGSEGV. vfork, posix_spawn and system are as ever.
     * - EOPNOTSUPP under vm.overcommit_memory=2, ulimit -v, mlockall(MCL_FUTURE), and for adopted
     *   memory. */
    ORBIT_ENGINE_SHARE = 6
};

/* What an area shall be like; begin with ORBIT_AREA_OPTIONS_INIT. */
struct orbit_area_options {
    size_t size;      /* sizeof(struct orbit_area_options) */
    const char *name; /* shown in messages; NULL: "area" */
    size_t init_size; /* bytes it is expected to hold; with adopt: bytes of memory to adopt */
    /* bytes it may ever hold, growing in place; 0: 64 MiB (less where ulimit -v is low), or
     * init_size if that is more */
    size_t limit;
    int engine;       /* enum orbit_engine */
    int reserved;     /* 0 */
    void *adopt;      /* not NULL: make the memory there the area, as orbit_area_adopt does */
};
#define ORBIT_AREA_OPTIONS_INIT { sizeof(struct orbit_area_options), NULL, 0, 0, 0, 0, NULL }

/* Makes an area for about init_size bytes; it grows in place up to 64 MiB, or init_size if that is
 * more. Its memory is taken as objects are made. orbit may be NULL; any orbit may be shown any
 * area, and gets its mirror, at the same address, with the first call that names it. NULL on
 * failure: ENOSPC (no address space left), EBADF. */
struct orbit_area *orbit_area_create(size_t init_size, struct orbit *orbit);
struct orbit_area *orbit_area_create_with(const struct orbit_area_options *options);
/* Makes existing memory an area, where it is: whole pages of private memory, readable and writable,
 * mapped as long as the area lives, and not released to the kernel or replaced meanwhile (madvise,
 * mremap, mmap over it), nor wiped in children (MADV_WIPEONFORK: large snapshots are held by a
 * clone). It has no allocator.
 * Best done before orbit_init: memory of the heap (malloc, posix_memalign) is rejected afterwards
 * (EINVAL), since orbits have memory of their own at such addresses by then. Memory from mmap may
 * be adopted later too: its place is kept free in orbits, up to 64 GiB and where no ulimit -v
 * holds. Where an orbit has memory of its own there all the same, its process ends and the outcome
 * says so; the next one gets the area first.
 * See ORBIT_GLOBAL for global variables. NULL on failure: EINVAL, EOPNOTSUPP. */
struct orbit_area *orbit_area_adopt(void *start, size_t len);
/* Names a moment in which nothing writes to an ORBIT_ENGINE_SHARE area (see ORBIT_QUIET): what main
 * wrote during calls is merged, so that the next call sends nothing. About a microsecond for each
 * page written during calls. 0, also for other areas; EBUSY: a call that names the area is in
 * flight. */
int orbit_area_merge(struct orbit_area *area);
/* Ends an area: its objects are gone and its memory is unmapped (adopted memory stays). EINVAL
 * while orbits use it: orbit_detach or orbit_destroy them first. Blocks while another thread
 * applies an update to it. A call that names the area meanwhile gives ENODEV, or comes first, and
 * the area is in use. */
int orbit_area_destroy(struct orbit_area *area);
/* Gives the handle up: the area ends as by orbit_area_destroy, but while orbits use it not before
 * the last of these has let go of it (orbit_detach, orbit_destroy). Its objects are there until
 * then, and may be freed. */
int orbit_area_release(struct orbit_area *area);

/* An area as it is now. */
struct orbit_area_info {
    void *base;        /* first address, the same in main and in every orbit */
    size_t limit;      /* bytes it may ever hold */
    size_t used;       /* bytes of living objects, as rounded up */
    size_t objects;    /* living objects */
    size_t high_water; /* bytes from base to the end of the last page ever used */
    int engine;        /* enum orbit_engine: what AUTO came to at the last snapshot */
    int reserved;      /* 0 */
};
int orbit_area_get_info(struct orbit_area *area, struct orbit_area_info *info);

/* An object of at least size bytes, aligned to 16, content undefined. NULL: ENOSPC (area full),
 * E2BIG, EBADF, EPERM (in an orbit). Takes tens of nanoseconds. Bookkeeping lies outside the area:
 * writing beyond an object cannot corrupt it. */
void *orbit_alloc(struct orbit_area *area, size_t size);
/* The same for count objects of size bytes, all bytes 0. */
void *orbit_calloc(struct orbit_area *area, size_t count, size_t size);
/* The same at a multiple of align, a power of two. */
void *orbit_aligned_alloc(struct orbit_area *area, size_t align, size_t size);
/* Makes an object hold size bytes; gives where it is now. NULL: the object is as it was. object
 * NULL: orbit_alloc. */
void *orbit_realloc(struct orbit_area *area, void *object, size_t size);
/* Frees an object of whatever area. NULL is nothing to free. EFAULT: in no area; EALREADY: free
 * already; EINVAL: inside an object; ECHILD: in an area of the process that this one was forked
 * from. */
int orbit_free(void *object);
/* Whether an address lies where objects of areas do, in main or as an orbit sees them: 1 or 0.
 * Memory that was adopted does not count. Never fails; in an orbit too. */
int orbit_is_from_area(const void *address);
/* Bytes that an object really has; 0 for NULL and on failure. */
size_t orbit_usable_size(const void *object);
/* Main is about to write to most of the pages of these len bytes of an area: one system call (a
 * tenth of a microsecond a page) in place of a fault for each page's first write after a snapshot
 * (one to two). The pages count as written whether they are or not. Never needed; worth it from
 * some pages on. EFAULT: not all in one area. */
int orbit_will_write(const void *start, size_t len);

/* ---- calls and futures (sections 4.1, 4.3, 4.4) ---------------------------------------------- */

/* Bytes of arguments that a call takes at most. */
#define ORBIT_MAX_ARGS 65536

enum orbit_outcome_kind {
    ORBIT_PENDING = 0,       /* not ended yet, or no call was made */
    ORBIT_RETURNED = 1,      /* value */
    ORBIT_CRASHED = 2,       /* signal, code, address, frames: the task did something fatal */
    /* status: the task ended its process by exit() (see orbit_entry) or _exit() */
    ORBIT_EXITED = 3,
    ORBIT_KILLED = 4,        /* signal: from outside, or by orbit_kill */
    ORBIT_OUT_OF_MEMORY = 5, /* it went beyond its memory limit */
    /* not done at its deadline; if it was running, its process was ended; frames: where it was */
    ORBIT_TIMED_OUT = 6,
    /* address, frames: the task slept on the lock at address, in an area, which was held in the
     * snapshot: its holder is not in the orbit, and nobody can release it; its process was ended.
     * text names the area */
    ORBIT_STUCK = 8,
    /* it never ran: cancelled, replaced, its orbit went down before its turn, or the one-shot
     * process that held its large snapshot died */
    ORBIT_CANCELLED = 7
};
/* How a call ended. Fields that do not belong to the kind are 0. */
struct orbit_outcome {
    int kind;             /* enum orbit_outcome_kind */
    int signal;           /* CRASHED, KILLED */
    int code;             /* CRASHED: the signal's si_code */
    int status;           /* EXITED */
    long value;           /* RETURNED */
    /* CRASHED: what the signal is about: read, written or jumped to; STUCK: the lock */
    void *address;
    uint32_t frame_count; /* CRASHED, STUCK, TIMED_OUT: addresses in frames */
    uint32_t reserved;    /* 0 */
    void *frames[32];     /* CRASHED, STUCK: the call stack, innermost first, addresses of main */
    /* all but RETURNED: a sentence, for CRASHED and STUCK followed by the call stack with functions
     * and lines */
    char text[1024];
};

/* Flags of a call: what to do when calls of the same orbit wait already (the running one counts as
 * waiting). At most one. */
#define ORBIT_SKIP_ANY 1  /* if any waits: queue nothing, take no snapshot; the future is that call's */
#define ORBIT_SKIP_SAME 2 /* the same if one with the same function and the same arguments waits */
/* Queue this one in the place of those of the same function that have not begun: they are cancelled
 * once it is queued, and not if it fails. Those at the end of the queue leave their room to it, so
 * that a call may be replaced any number of times while another runs. The others keep theirs until
 * the orbit comes to them: those with a call of another function behind them, and those whose large
 * snapshot a copier holds, with all before them. */
#define ORBIT_REPLACE 4
/* With any of these or none: nothing writes to the call's ORBIT_ENGINE_SHARE areas until the call
 * is made (no other thread, no signal handler of one, no other process, no device), so that what
 * main wrote during earlier calls may be merged. What is written there all the same is lost. Other
 * areas need no such word. */
#define ORBIT_QUIET 8

/* How a call is made; begin with ORBIT_CALL_OPTIONS_INIT. */
struct orbit_call_options {
    size_t size;           /* sizeof(struct orbit_call_options) */
    orbit_entry func_once; /* run this in place of the orbit's entry; NULL: the entry */
    int flags;             /* ORBIT_SKIP_ANY, ORBIT_SKIP_SAME, ORBIT_REPLACE, ORBIT_QUIET, or 0 */
    int reserved;          /* 0 */
    uint64_t deadline_us;  /* from now, microseconds; 0: the orbit's own */
};
#define ORBIT_CALL_OPTIONS_INIT { sizeof(struct orbit_call_options), NULL, 0, 0, 0 }

/* Takes a snapshot of the areas, has the orbit run its entry (or func_once, if not NULL) on it, and
 * waits for the end.
 * args: args_size bytes, copied, at most ORBIT_MAX_ARGS; may be NULL with a size of 0. Pointers in
 * them mean the same in the orbit if they point into the areas. The objects must not change while
 * the snapshot is taken: call inside the lock that guards them. If that lock lies in an area
 * itself, it is held in the snapshot, and a task that takes it can never get it: its orbit is ended
 * after a second (ORBIT_STUCK). Keep locks outside of areas, or have tasks not take them. outcome
 * may be NULL. func_once must be code that was loaded when the orbit was made, and is still: of a
 * plugin loaded since EINVAL; an orbit made after that has it.
 * 0: the task returned, outcome->value is what. Else negative: if outcome->kind is not
 * ORBIT_PENDING, the call was made and ended so (EREMOTEIO, EOWNERDEAD, ENOMEM, EDEADLK, ETIMEDOUT,
 * ECANCELED), and the orbit is started again as its policy says; otherwise it was not made (E2BIG,
 * EBADF, EINVAL, ENOSPC, ENODEV, EHOSTDOWN, ECHILD, EPERM; ETIMEDOUT: no room). While the orbit is
 * down after a crash, the call waits for it, a second or until its deadline. Updates that the task
 * pushed wait at the orbit: take them with orbit_pull. */
int orbit_call(struct orbit *orbit, size_t area_count, struct orbit_area *const *areas, orbit_entry func_once,
               const void *args, size_t args_size, struct orbit_outcome *outcome);
int orbit_call_with(struct orbit *orbit, size_t area_count, struct orbit_area *const *areas, const void *args,
                    size_t args_size, const struct orbit_call_options *options, struct orbit_outcome *outcome);
/* The same without waiting for the end: returns when the snapshot is taken and the call is queued;
 * main may change the objects at once, and the task sees them as they were. Calls of one orbit run
 * one after the other, in the order made. Blocks while there is no room (see ORBIT_FULL_BLOCK), and
 * while the orbit is down (down_wait_us). Free the future with orbit_future_free. NULL on failure.
 * */
struct orbit_future *orbit_call_async(struct orbit *orbit, int flags, size_t area_count,
    struct orbit_area *const *areas,
                                      orbit_entry func_once, const void *args, size_t args_size);
struct orbit_future *orbit_call_async_with(struct orbit *orbit, size_t area_count, struct orbit_area *const *areas,
                                           const void *args, size_t args_size,
                                           const struct orbit_call_options *options);
/* Cancels the waiting calls that have these arguments and have not begun; gives how many. */
long orbit_cancel_args(struct orbit *orbit, const void *args, size_t args_size);

/* Blocks until the call has ended. Answers as orbit_call does; may be asked again. outcome may be
 * NULL. */
int orbit_future_wait(struct orbit_future *future, struct orbit_outcome *outcome);
/* The same for at most this many microseconds; then ETIMEDOUT with kind ORBIT_PENDING, and the call
 * continues. */
int orbit_future_wait_timeout(struct orbit_future *future, uint64_t timeout_us, struct orbit_outcome *outcome);
/* The same without waiting: EINPROGRESS while the call has not ended. The text of a crash names
 * functions once the descriptor of orbit_future_fd is readable; polled sooner, it may have file and
 * offset instead. The waiting forms wait for the names, two seconds at most. */
int orbit_future_poll(struct orbit_future *future, struct orbit_outcome *outcome);
/* A descriptor that becomes readable when the call has ended, and stays so: for poll and epoll. Do
 * not read or close it; it is closed after orbit_future_free. */
int orbit_future_fd(struct orbit_future *future);
/* Cancels the call if it has not begun: 0, and it will never run. EBUSY: it runs or has ended. */
int orbit_future_cancel(struct orbit_future *future);
/* Lets go of a future. The call continues; updates that were not pulled are lost. NULL is nothing
 * to free. */
int orbit_future_free(struct orbit_future *future);

/* ---- updates (section 4.5) ------------------------------------------------------------------- */

/* In a task: an empty update to be filled. Free it with orbit_update_free, after the push. */
struct orbit_update *orbit_update_create(void);
int orbit_update_free(struct orbit_update *update);
/* Adds bytes for main to read (copied, as with all that follow). An update holds at most 65,536
 * items and 64 MiB. */
int orbit_update_add_data(struct orbit_update *update, const void *data, size_t size);
/* Adds a modification: these size bytes at place, which lies in an area. Aligned fields of 1, 2, 4
 * and 8 bytes are written in one piece. */
int orbit_update_add_modify(struct orbit_update *update, const void *place, const void *new_bytes, size_t size);
/* The same with a condition: if old_bytes do not stand at place when the update is applied, nothing
 * of it is. */
int orbit_update_add_modify_if(struct orbit_update *update, const void *place, const void *old_bytes,
                               const void *new_bytes, size_t size);
/* Adds a call of a function that main has registered, with a copy of these bytes. */
int orbit_update_add_operation(struct orbit_update *update, orbit_operation operation, const void *args, size_t size);
/* In a task: hands the update to main, for the future of the call that runs, or for orbit_pull if
 * it was made by orbit_call. A task may push as much as it likes in a call. Blocks while main has
 * much to take: while 256 MiB wait in main, for calls of this orbit that have not ended, until some
 * were pulled (pull_orbit, orbit_try_pull). So pull before waiting for the end of such a call, or
 * give it a deadline. Updates of a future that was freed, and those of an orbit_call beyond what
 * orbit_pull keeps, are let go of at once. The update is still the task's. EPERM in main; E2BIG. */
int orbit_push(struct orbit_update *update);

/* In main: blocks until the task pushes an update in this call, and takes it. 1: *update is it,
 * free it with orbit_update_free. 0: the call has ended and no update is left; *update is NULL,
 * orbit_future_wait says how it ended. */
int pull_orbit(struct orbit_future *future, struct orbit_update **update);
/* The same, and the update stays the future's: it is void after the next such pull, and after
 * orbit_future_free. */
int orbit_future_pull(struct orbit_future *future, struct orbit_update **update);
/* The same as pull_orbit without waiting: EINPROGRESS while there is none and the call has not
 * ended. */
int orbit_try_pull(struct orbit_future *future, struct orbit_update **update);
/* In main: takes the next update that an orbit_call (or orbit_call_with) of this orbit brought, the
 * oldest first. Never
 * waits: they are there when the call returns, however it ended. 1: *update is it, free it with
 * orbit_update_free; 0: none is left. Where several threads call, one may get another's: to keep
 * them apart use orbit_call_async and pull_orbit. At most 1 MiB of updates wait (or one larger
 * one); then the oldest are dropped for newer ones, and counted as dropped_updates. */
int orbit_pull(struct orbit *orbit, struct orbit_update **update);

enum orbit_item_kind {
    ORBIT_ITEM_DATA = 1,      /* data, size */
    ORBIT_ITEM_MODIFY = 2,    /* address, data (the new bytes), size */
    ORBIT_ITEM_MODIFY_IF = 3, /* the same, and old_data */
    /* operation (never call it yourself: orbit_apply checks it), data (its arguments), size */
    ORBIT_ITEM_OPERATION = 4
};
/* One item of an update. Trust none of it: the task wrote it. data need not be aligned for its
 * type: copy it out. */
struct orbit_item {
    int kind; /* enum orbit_item_kind */
    int reserved;
    size_t size;
    const void *data;
    void *address;
    const void *old_data;
    orbit_operation operation;
};
/* The items in order. Valid until the update is changed or freed. NULL: no further item (or a bad
 * handle, errno is set). */
const struct orbit_item *orbit_update_first(struct orbit_update *update);
const struct orbit_item *orbit_update_next(struct orbit_update *update, const struct orbit_item *item);

/* Applies an update that was pulled: every item is checked first (in an area that this orbit may
 * alter: EFAULT, EACCES; old
 * bytes: ESTALE; operation registered: EACCES), then all modifications are made, then all
 * operations run, in order; if any check fails nothing is changed. An operation that throws (C++)
 * ends orbit_apply by its exception: the modifications are made, the operations before it have run,
 * those behind it do not. Hold the lock that guards the objects. Who destroys an area meanwhile
 * waits for the modifications; one that is destroyed already gives EFAULT or ENODEV. An area that
 * an orbit may alter must hold objects that tolerate any bytes: indices are to be checked, pointers
 * compared with known ones. */
int orbit_apply(struct orbit_update *update);
/* Lets tasks ask for this function. Twice is once. It must take any bytes of any length without
 * harm. EINVAL, EFAULT: there is no function at such an address. */
int orbit_register_operation(orbit_operation operation);
/* Takes it back. ENOENT: it was not registered. */
int orbit_unregister_operation(orbit_operation operation);

/* ---- global variables in an area ------------------------------------------------------------- */

/* ORBIT_GLOBAL(int hits) = 3; or ORBIT_GLOBAL(static struct table tables[4]); at file scope puts a
 * variable into the section "orbit_global_data" of the program or library it is in; orbit_globals()
 * adopts that section as an area. The section begins and ends at a page, so nothing else lies in
 * it. Not for const or thread-local variables; it is in the file with its whole size. */
#ifdef __aarch64__
#define ORBIT_GLOBALS_ALIGN_ "65536"
#else
#define ORBIT_GLOBALS_ALIGN_ "4096"
#endif
/* The assembler lays the numbered part of the section after the variables of this source file: it
 * fills the last page. */
#define ORBIT_GLOBAL(declaration)                                                      \
    __asm__(".pushsection orbit_global_data, 8000, \"aw\", %progbits\n\t"                  \
            ".balign " ORBIT_GLOBALS_ALIGN_ "\n\t.popsection");                        \
    declaration __attribute__((section("orbit_global_data"), used))

/* The linker's names for the ends of the section. */
extern char __start_orbit_global_data[] __attribute__((weak, visibility("hidden")));
extern char __stop_orbit_global_data[] __attribute__((weak, visibility("hidden")));

/* The area of this program's or library's ORBIT_GLOBAL variables; to be called once. NULL: there
 * are none (EINVAL), or as orbit_area_adopt. */
static inline struct orbit_area *orbit_globals(void)
{
    return orbit_area_adopt(__start_orbit_global_data, (size_t)(__stop_orbit_global_data - __start_orbit_global_data));
}

#ifdef __cplusplus
}
#endif
#endif
