/* The running example of the orbit paper (figures 2, 4 and 7): transactions that lock records, and
 * a deadlock detector in an orbit.
 *
 *     cc deadlock.c $(pkg-config --cflags --libs orbit) -lpthread -o deadlock && ./deadlock
 *     ./deadlock --fault push:segv --every 1        the detector dies in every call; transactions finish all the same
 *
 * Each thread runs transactions that lock a few records in random order, so they run into
 * deadlocks. A transaction that has to wait calls the detector, which follows pointers through a
 * snapshot of the lock table to find a ring, picks a victim and pushes its rollback: the version it
 * saw, the modification of one field, and an operation that wakes the victim. Main checks whether
 * the victim is still that transaction, and applies it. When the detector fails, main learns how,
 * calls it again, and after a few failures falls back to a timeout.
 *
 * Exit status: 0 if all transactions finished, 1 if not, 2 for wrong arguments.
 */
#include <errno.h>
#include <getopt.h>
#include <orbit.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 64
#define MAX_LOCKS 256
#define LOCKS_PER_TRX 3

/* What lies in the area, and so is seen by the detector. */
struct lock {
    struct trx *owner;
    int id;
};
struct trx {
    long version;           /* changes with every transaction that uses this slot, and every retry */
    struct lock *wait_lock; /* what it waits for */
    int held;               /* locks it holds: the victim is the one with the fewest */
    int cancel;             /* set by the detector: roll back */
    int id;
};

/* What the detector reports about a victim. */
struct trx_version {
    long version;
    int id;
    int ring_length;
};

struct dlc_args {
    struct lock *lock;
    struct trx *trx;
    unsigned call;
};

/* ---- faults, set before the orbit exists so that it has them too ---- */

enum step { STEP_NONE, STEP_START, STEP_SEARCH, STEP_VICTIM, STEP_UPDATE, STEP_PUSH, STEP_RETURN };
static const char *const steps[] = {"none", "start", "search", "victim", "update", "push", "return"};
static const char *const kinds[] = {"segv", "abort", "exit", "kill", "hang", "leak", "wild"};
static enum step fault_step;
static int fault_kind;
static unsigned fault_every = 2, deadline_ms = 100;
static struct trx *area_first; /* for "wild" */
static volatile int *volatile nowhere; /* for "segv" */

static void maybe_fail(enum step step, unsigned call)
{
    if (step != fault_step || call % fault_every != 0)
        return;
    switch (fault_kind) {
    case 0: *nowhere = 1; break;
    case 1: abort();
    case 2: _exit(3);
    case 3: kill(getpid(), SIGKILL); break;
    case 4: for (;;) pause();
    case 5: for (;;) {
            char *leak = malloc(1 << 20);
            if (leak == NULL)
                abort();
            memset(leak, 1, 1 << 20);
        }
    case 6: memset(area_first, 0xff, sizeof *area_first * 8); break; /* its own copy only: it then trips over it */
    }
}

/* ---- the detector: runs in the orbit ---- */

static long wake_trx(void *args, size_t len);

static void trx_rollback(struct trx *victim, int ring_length, unsigned call)
{
    struct orbit_update *scratch = orbit_update_create();
    struct trx_version version = {victim->version, victim->id, ring_length};
    int now = 1;
    orbit_update_add_data(scratch, &version, sizeof version);
    maybe_fail(STEP_UPDATE, call);
    orbit_update_add_modify_if(scratch, &victim->cancel, &victim->cancel, &now, sizeof now);
    orbit_update_add_operation(scratch, wake_trx, &victim->id, sizeof victim->id);
    maybe_fail(STEP_PUSH, call);
    orbit_push(scratch);
    orbit_update_free(scratch);
}

static long check_and_resolve(void *store, void *argbuf)
{
    struct dlc_args *args = argbuf;
    struct trx *victim = args->trx, *at = args->trx;
    int length = 0;
    (void)store;
    maybe_fail(STEP_START, args->call);
    do {
        maybe_fail(STEP_SEARCH, args->call);
        if (at->wait_lock == NULL || at->wait_lock->owner == NULL || at->cancel || ++length > MAX_THREADS)
            return 0; /* somebody in this chain runs: no ring */
        at = at->wait_lock->owner;
        if (at->held < victim->held)
            victim = at;
    } while (at != args->trx);
    maybe_fail(STEP_VICTIM, args->call);
    trx_rollback(victim, length, args->call);
    maybe_fail(STEP_RETURN, args->call);
    return length;
}

/* ---- main ---- */

static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards all that is in the area */
static struct orbit *dlc;
static struct orbit_area *area;
static struct lock *locks[MAX_LOCKS];
static struct trx *trxs[MAX_THREADS];
static pthread_cond_t woken[MAX_THREADS];
static int thread_count = 8, lock_count = 6, per_thread = 100, verbose;
static unsigned seed = 1;

static atomic_uint calls, rollbacks, timeouts, stale, refused, outcomes[8];
static atomic_long finished;

/* An operation: the detector chose the bytes, so they are checked. */
static long wake_trx(void *args, size_t len)
{
    int id;
    if (len != sizeof id)
        return -1;
    memcpy(&id, args, sizeof id);
    if (id < 0 || id >= thread_count)
        return -1;
    return pthread_cond_signal(&woken[id]);
}

/* Under the mutex: what an update says, if the victim is still the transaction that the detector
 * saw. */
static void handle_update(struct orbit_update *update)
{
    struct trx_version seen;
    const struct orbit_item *first = orbit_update_first(update);
    if (first == NULL || first->kind != ORBIT_ITEM_DATA || first->size != sizeof seen) {
        refused++;
        return;
    }
    memcpy(&seen, first->data, sizeof seen);
    if (seen.id < 0 || seen.id >= thread_count) {
        refused++;
    } else if (trxs[seen.id]->version != seen.version || trxs[seen.id]->wait_lock == NULL) {
        stale++;
    } else if (orbit_apply(update) < 0) {
        if (verbose)
            printf("refused: %s\n", orbit_last_error());
        refused++;
    } else if (verbose) {
        printf("deadlock of %d transactions: victim %d, version %ld, rolled "
            "back\n", seen.ring_length, seen.id, seen.version);
    }
}

/* Calls the detector for a transaction that waits. Holds the mutex on entry and on return, not
 * meanwhile. True: it ran. */
static bool detect(struct trx *self)
{
    unsigned call = calls++;
    struct dlc_args args = {self->wait_lock, self, call};
    struct orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
    options.deadline_us = deadline_ms * 1000ul;
    /* The snapshot is taken here, inside the lock that guards the objects. */
    struct orbit_future *future = orbit_call_async_with(dlc, 1, &area, &args, sizeof args, &options);
    pthread_mutex_unlock(&table_mutex);
    struct orbit_update *update;
    struct orbit_outcome end;
    end.kind = ORBIT_PENDING;
    if (future != NULL) {
        while (pull_orbit(future, &update) == 1) {
            pthread_mutex_lock(&table_mutex);
            handle_update(update);
            pthread_mutex_unlock(&table_mutex);
            orbit_update_free(update);
        }
        if (orbit_future_wait(future, &end) < 0 && verbose)
            printf("the detector failed: %.*s\n", (int)strcspn(end.text, "\n"), end.text);
        orbit_future_free(future);
        outcomes[end.kind & 7]++;
    } else {
        if (verbose)
            printf("no call: %s\n", orbit_last_error());
        usleep(1000); /* being started again */
    }
    pthread_mutex_lock(&table_mutex);
    return end.kind == ORBIT_RETURNED;
}

/* Under the mutex. False: roll back. */
static bool lock_rec(struct trx *self, struct lock *lock)
{
    int failures = 0;
    bool checked = false;
    while (lock->owner != NULL) {
        self->wait_lock = lock;
        if (!checked) {
            checked = detect(self);
            failures += !checked;
        } else {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 100 * 1000 * 1000;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            /* The check may have been too early for a ring closed since; then its last member
             * has checked. Once more all the same, should that one have failed. */
            if (pthread_cond_timedwait(&woken[self->id], &table_mutex, &until) == ETIMEDOUT)
                checked = false;
        }
        if (self->cancel) {
            rollbacks++;
            return false;
        }
        if (failures >= 3 && lock->owner != NULL) {
            timeouts++; /* no detector available: the way of a lock wait timeout */
            return false;
        }
    }
    self->wait_lock = NULL;
    lock->owner = self;
    self->held++;
    return true;
}

/* Under the mutex. */
static void release_all(struct trx *self, struct lock **mine, int count)
{
    for (int i = 0; i < count; i++) {
        mine[i]->owner = NULL;
        for (int t = 0; t < thread_count; t++)
            if (trxs[t]->wait_lock == mine[i])
                pthread_cond_signal(&woken[t]);
    }
    self->wait_lock = NULL;
    self->held = 0;
    self->cancel = 0;
    self->version++;
}

static void *client(void *number)
{
    struct trx *self = trxs[*(int *)number];
    unsigned random = seed * 7919 + (unsigned)self->id;
    for (int n = 0; n < per_thread; n++) {
        struct lock *wanted[LOCKS_PER_TRX];
        for (int i = 0; i < LOCKS_PER_TRX; i++) {
            bool again;
            do {
                wanted[i] = locks[rand_r(&random) % (unsigned)lock_count];
                again = false;
                for (int j = 0; j < i; j++)
                    again |= wanted[j] == wanted[i];
            } while (again);
        }
        bool done = false;
        while (!done) {
            int got = 0;
            while (got < LOCKS_PER_TRX) {
                pthread_mutex_lock(&table_mutex);
                bool locked = lock_rec(self, wanted[got]);
                pthread_mutex_unlock(&table_mutex);
                if (!locked)
                    break;
                got++;
                usleep(20); /* the work of the transaction */
            }
            done = got == LOCKS_PER_TRX;
            pthread_mutex_lock(&table_mutex);
            release_all(self, wanted, got);
            pthread_mutex_unlock(&table_mutex);
            if (!done)
                usleep(rand_r(&random) % 500);
        }
        finished++;
    }
    return NULL;
}

static void usage(FILE *to)
{
    fprintf(to,
            "usage: deadlock [--threads N] [--transactions N] [--locks N] [--seed N] [--fault STEP:KIND] [--every N]\n"
            "                [--deadline MS] [-v]\n"
            "Transactions lock records in random order; a deadlock detector in an orbit finds rings and has a victim "
            "rolled\n"
            "back. Whatever happens to the detector, all transactions finish.\n"
            "  --threads N        clients, 2 to %d (%d)\n"
            "  --transactions N   of each client (%d)\n"
            "  --locks N          records, %d to %d (%d): fewer are fought for more\n"
            "  --seed N           of the random order (%u)\n"
            "  --fault STEP:KIND  the detector fails at this step in this way\n"
            "      steps: start   as a call begins              update  while the update is made\n"
            "             search  while it follows pointers     push    before the update is handed over\n"
            "             victim  when a ring was found         return  afterwards\n"
            "      kinds: segv abort exit kill; hang, which the deadline ends; leak, which the memory limit ends;\n"
            "             wild, which overwrites the lock table (its own copy of it)\n"
            "  --every N          in every Nth call (%u)\n"
            "  --deadline MS      of a call of the detector (%u)\n"
            "  -v, --verbose      report every deadlock and every failure\n"
            "Exit status: 0 if all transactions finished.\n",
            MAX_THREADS, thread_count, per_thread, LOCKS_PER_TRX, MAX_LOCKS, lock_count, seed, fault_every,
                deadline_ms);
}

static int index_of(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

static bool parse(int argc, char **argv)
{
    static const struct option longs[] = {{"threads", 1, NULL, 't'}, {"transactions", 1, NULL, 'n'},
        {"locks", 1, NULL, 'l'},
                                          {"seed", 1, NULL, 's'},    {"fault", 1, NULL, 'f'},
                                              {"every", 1, NULL, 'e'},
                                          {"deadline", 1, NULL, 'd'}, {"verbose", 0, NULL, 'v'},
                                              {"help", 0, NULL, 'h'},         {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "vh", longs, NULL)) != -1;) {
        switch (c) {
        case 't': thread_count = atoi(optarg); break;
        case 'n': per_thread = atoi(optarg); break;
        case 'l': lock_count = atoi(optarg); break;
        case 's': seed = (unsigned)atoi(optarg); break;
        case 'e': fault_every = (unsigned)atoi(optarg); break;
        case 'd': deadline_ms = (unsigned)atoi(optarg); break;
        case 'v': verbose = 1; break;
        case 'h': usage(stdout); exit(0);
        case 'f': {
            char *kind = strchr(optarg, ':');
            if (kind == NULL)
                return false;
            *kind++ = 0;
            int step = index_of(optarg, steps, 7);
            fault_kind = index_of(kind, kinds, 7);
            if (step < 1 || fault_kind < 0)
                return false;
            fault_step = (enum step)step;
            break;
        }
        default: return false;
        }
    }
    return optind == argc && thread_count >= 2 && thread_count <= MAX_THREADS && lock_count >= LOCKS_PER_TRX &&
           lock_count <= MAX_LOCKS && per_thread >= 1 && fault_every >= 1 && deadline_ms >= 1;
}

static bool fail(const char *what)
{
    fprintf(stderr, "deadlock: %s: %s\n", what, orbit_last_error());
    return false;
}

static bool set_up(void)
{
    area = orbit_area_create(4096, NULL);
    if (area == NULL)
        return fail("an area for the lock table");
    for (int t = 0; t < thread_count; t++) {
        trxs[t] = orbit_calloc(area, 1, sizeof *trxs[t]);
        if (trxs[t] == NULL)
            return fail("a transaction");
        trxs[t]->id = t;
        pthread_cond_init(&woken[t], NULL);
    }
    area_first = trxs[0];
    for (int l = 0; l < lock_count; l++) {
        locks[l] = orbit_calloc(area, 1, sizeof *locks[l]);
        if (locks[l] == NULL)
            return fail("a lock");
        locks[l]->id = l;
    }
    orbit_register_operation(wake_trx);
    struct orbit_limits limits = ORBIT_LIMITS_INIT;
    limits.memory = 8 << 20; /* little, so that a leak ends soon; the detector takes next to nothing */
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "dl_checker";
    options.entry = check_and_resolve;
    options.limits = &limits;
    options.restart = ORBIT_RESTART_ALWAYS;
    dlc = orbit_create_with(&options);
    if (dlc == NULL)
        return fail("the detector's orbit");
    return true;
}

int main(int argc, char **argv)
{
    pthread_t threads[MAX_THREADS];
    int numbers[MAX_THREADS];
    if (!parse(argc, argv)) {
        usage(stderr);
        return 2;
    }
    if (!set_up())
        return 1;
    printf("%d clients with %d transactions each of %d locks out of %d; fault: %s%s%s\n", thread_count, per_thread,
           LOCKS_PER_TRX, lock_count, steps[fault_step], fault_step ? ":" : "", fault_step ? kinds[fault_kind] : "");
    for (int t = 0; t < thread_count; t++) {
        numbers[t] = t;
        if (pthread_create(&threads[t], NULL, client, &numbers[t]) != 0) {
            fprintf(stderr, "deadlock: cannot start client %d\n", t);
            _exit(1);
        }
    }
    for (int t = 0; t < thread_count; t++)
        pthread_join(threads[t], NULL);

    struct orbit_counters stats;
    orbit_stats(dlc, &stats);
    orbit_destroy(dlc);
    orbit_area_destroy(area);
    long wanted = (long)thread_count * per_thread;
    printf("transactions finished: %ld of %ld\n", (long)finished, wanted);
    printf("detector: %u calls, %u returned, %u crashed, %u exited, %u killed, %u out of memory, %u timed out, %u "
        "cancelled; "
           "%lu restarts\n",
           (unsigned)calls, outcomes[ORBIT_RETURNED], outcomes[ORBIT_CRASHED], outcomes[ORBIT_EXITED],
           outcomes[ORBIT_KILLED], outcomes[ORBIT_OUT_OF_MEMORY], outcomes[ORBIT_TIMED_OUT], outcomes[ORBIT_CANCELLED],
           (unsigned long)stats.restarts);
    printf("rolled back: %u by the detector, %u by timeout; updates: %u too late, %u refused\n", (unsigned)rollbacks,
           (unsigned)timeouts, (unsigned)stale, (unsigned)refused);
    return finished == wanted ? 0 : 1;
}
