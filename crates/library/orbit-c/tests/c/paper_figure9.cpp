// Figures 8 and 9 of the paper, the lines of 9 as printed: a field of a large struct lies in a
// delegate in an area; main uses it as before, the task sees it by the delegate.
#include <orbit_paper.h>

#include <cstdio>
#include <cstdlib>
#include <new>

struct lock_t {
    int number;
};
struct trx_t_delegate {
    struct {
        lock_t *wait_lock;
    } lock;
};
struct trx_lock_t {
    explicit trx_lock_t(trx_t_delegate *d);
    lock_t *&wait_lock;
};
struct trx_t {
    explicit trx_t(trx_t_delegate *d);
    char much[10000];
    trx_lock_t lock;
    trx_t_delegate *bound = nullptr;
    trx_t_delegate *delegate() { return bound; }
};
static orbit_area *area;
static trx_t_delegate *trx_delegate;

// new constructors
trx_t::trx_t(trx_t_delegate *d) : lock(d) {}
trx_lock_t::trx_lock_t(trx_t_delegate *d)
    : wait_lock(d->lock.wait_lock) {}
// creating and binding delegate objects
void trx_init(trx_t *trx) {
    auto delegate = (trx_t_delegate *)orbit_alloc(area,
        sizeof(*trx_delegate));
    new(trx) trx_t(delegate);
    trx->bound = delegate;
}

static long waits_for(void *argbuf, void *)
{
    trx_t_delegate *seen = *(trx_t_delegate **)argbuf;
    return seen->lock.wait_lock == nullptr ? -1 : seen->lock.wait_lock->number;
}

int main()
{
    struct orbit *dlc = orbit_create("dl_checker", waits_for, NULL);
    area = orbit_area_create(4096);
    if (dlc == NULL || area == NULL)
        return 1;
    trx_t *trx = (trx_t *)std::malloc(sizeof(trx_t));
    trx_init(trx);
    lock_t *lock = (lock_t *)orbit_alloc(area, sizeof(*lock));
    lock->number = 17;
    trx_t_delegate *delegate = trx->delegate();
    trx->lock.wait_lock = nullptr;
    long none = orbit_call(dlc, 1, &area, &delegate, sizeof(delegate));
    trx->lock.wait_lock = lock;
    long one = orbit_call(dlc, 1, &area, &delegate, sizeof(delegate));
    std::printf("%ld, %ld: %s\n", none, one, orbit_last_error());
    return none == -1 && one == 17 ? 0 : 1;
}
