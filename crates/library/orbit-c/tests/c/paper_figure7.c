/* Figure 7 of the paper, its lines as printed: the task pushes data, a modification and an
 * operation; main applies them if the transaction is alive, and the thread that waits is woken.
 * What a task asks for beyond that is rejected, and nothing of it is done. */
#include <orbit_paper.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct {
    long number;
} TrxVersion;
typedef struct {
    pthread_cond_t condvar;
} slot_t;
typedef struct {
    TrxVersion version;
    struct {
        bool cancel;
    } lock;
    slot_t *slot;
} trx_t;

static trx_t *trx;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool waits, woken;
static long bad_runs;

static bool trx_is_alive(TrxVersion *version)
{
    return version->number == trx->version.number;
}

void trx_rollback(trx_t *victim) { // within orbit task
    orbit_update *scratch = orbit_update_create();
    orbit_update_add_data(scratch, &victim->version);
    victim->lock.cancel = true;
    orbit_update_add_modify(scratch, &victim->lock.cancel, true);
    orbit_update_add_operation(scratch, pthread_cond_signal,
        &trx->slot->condvar);
    orbit_push(scratch);
}
static long applied;
void handle_rollback(orbit_future *future) { // in main program
    orbit_update update;
    long ret = pull_orbit(future, &update);
    TrxVersion *version = orbit_update_first(update)->data;
    if (trx_is_alive(version))
        applied =
        orbit_apply(update);
    else
        applied = 1;
    if (ret != 1)
        applied = -1;
}

static long resolve(void *argbuf, void *store)
{
    (void)store;
    trx = *(trx_t **)argbuf;
    trx_rollback(trx);
    return 0;
}

static int unnamed(void *anything)
{
    (void)anything;
    bad_runs++;
    return 0;
}

struct wild {
    trx_t *victim;
    int what;
};

/* An operation whose argument is no address of an area, or a function that the program names
 * nowhere. */
static long goes_wild(void *argbuf, void *store)
{
    (void)store;
    struct wild *wild = argbuf;
    orbit_update *scratch = orbit_update_create();
    orbit_update_add_modify(scratch, &wild->victim->version.number, 666);
    if (wild->what == 0)
        orbit_update_add_operation(scratch, pthread_cond_signal, (char *)&mutex);
    else
        orbit_paper_add_operation(scratch, (void (*)(void))unnamed, NULL);
    return orbit_push(scratch);
}

static void *waiter(void *unused)
{
    pthread_mutex_lock(&mutex);
    waits = true;
    while (!trx->lock.cancel)
        pthread_cond_wait(&trx->slot->condvar, &mutex);
    woken = true;
    pthread_mutex_unlock(&mutex);
    return unused;
}

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, orbit_last_error()); \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

int main(void)
{
    orbit *ob = orbit_create("dl_checker", resolve, NULL);
    orbit_area *area = orbit_area_create(4096);
    CHECK(ob != NULL && area != NULL);
    trx = orbit_alloc(area, sizeof *trx);
    memset(trx, 0, sizeof *trx);
    trx->slot = orbit_alloc(area, sizeof *trx->slot);
    pthread_cond_init(&trx->slot->condvar, NULL);
    trx->version.number = 9;

    orbit_future *late = orbit_call_async(ob, 0, 1, &area, NULL, &trx, sizeof trx);
    trx->version.number = 10;
    handle_rollback(late);
    CHECK(applied == 1 && !trx->lock.cancel);

    for (int what = 0; what < 2; what++) {
        struct wild wild = { trx, what };
        orbit_future *f = orbit_call_async(ob, 0, 1, &area, goes_wild, &wild, sizeof wild);
        orbit_update update;
        CHECK(pull_orbit(f, &update) == 1);
        CHECK(orbit_apply(update) == -EACCES);
        CHECK(trx->version.number == 10 && bad_runs == 0);
        CHECK(orbit_future_free(f) == 0);
    }

    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waiter, NULL) == 0);
    for (bool there = false; !there;) {
        pthread_mutex_lock(&mutex);
        there = waits;
        pthread_mutex_unlock(&mutex);
    }
    orbit_future *future = orbit_call_async(ob, 0, 1, &area, NULL, &trx, sizeof trx);
    pthread_mutex_lock(&mutex);
    handle_rollback(future);
    pthread_mutex_unlock(&mutex);
    CHECK(applied == 0);
    pthread_join(thread, NULL);
    CHECK(woken && trx->lock.cancel);
    return 0;
}
