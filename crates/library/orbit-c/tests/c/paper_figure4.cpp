// Figure 4 of the paper, its lines as printed: the deadlock detector is called on a lock and a
// transaction in an area, and its value comes back.
#include <orbit_paper.h>

#include <cstdio>

struct lock_t {
    int owner;
};
struct trx_t {
    int waits_for;
};
struct dlc_args {
    lock_t *lock;
    trx_t *trx;
};
enum dberr_t { DB_SUCCESS, DB_DEADLOCK };
enum { LOCK_REC_OK, LOCK_REC_FAIL };
struct RecLock {
    lock_t *lock_alloc(trx_t *trx);
};

// Figure 2's function, with an entry's arguments: whether the owner waits for whom it blocks.
long check_and_resolve(void *argbuf, void *store)
{
    dlc_args *args = (dlc_args *)argbuf;
    return store == NULL && args->lock->owner == args->trx->waits_for ? 42 : 7;
}

static int status = LOCK_REC_FAIL;
static lock_t *lock;
static trx_t *m_trx;
static long victim;

struct orbit *dlc;
struct orbit_area *area;

int mysqld_main()
{
    dlc = orbit_create("dl_checker", check_and_resolve, NULL);
    area = orbit_area_create(4096);
    return dlc != NULL && area != NULL;
}

lock_t *RecLock::lock_alloc(trx_t *)
{
    lock_t *lock;
    lock = (lock_t *)orbit_alloc(area, sizeof(*lock));
    return lock;
}

dberr_t lock_rec_lock()
{
    if (status == LOCK_REC_FAIL) {
        dlc_args args = {lock, m_trx};
        victim =
        orbit_call(dlc, 1, &area, &args, sizeof(dlc_args));
    }
    return victim == 42 ? DB_DEADLOCK : DB_SUCCESS;
}

int main()
{
    if (!mysqld_main()) {
        std::printf("%s\n", orbit_last_error());
        return 1;
    }
    m_trx = (trx_t *)orbit_alloc(area, sizeof(*m_trx));
    lock = RecLock().lock_alloc(m_trx);
    lock->owner = 3;
    m_trx->waits_for = 3;
    dberr_t deadlocked = lock_rec_lock();
    m_trx->waits_for = 0;
    dberr_t free_now = lock_rec_lock();
    std::printf("deadlock %d, then %d: %s\n", deadlocked, free_now, orbit_last_error());
    return deadlocked == DB_DEADLOCK && free_now == DB_SUCCESS ? 0 : 1;
}
