/* What a program may ask for itself: see orbit_keep.h. */
#include "own.h"
#include "../include/orbit_keep.h"
#include <linux/futex.h>
#include <sys/syscall.h>

/* How long a barrier waits at most, in steps. */
#define BARRIER_STEPS 400
#define BARRIER_STEP_NS 25000000

/* 0 where nothing is to be asked for: no keeper, or what the program does now was done before. */
static uint32_t wish(void)
{
    if (!keep_orders || !keep_keeper_lives() || keep_both->mode == KEEP_REPLAY)
        return 0;
    uint32_t nth = __atomic_add_fetch(&keep_news->wishes, 1, __ATOMIC_SEQ_CST);
    keep_ring();
    return nth;
}

EXPORT int orbit_keep_point(void)
{
    return wish() != 0;
}

EXPORT int orbit_keep_output_barrier(void)
{
    if (keep_orders && keep_keeper_lives() && keep_both->mode == KEEP_REPLAY)
        return 1;
    uint32_t nth = wish();
    const struct timespec step = {0, BARRIER_STEP_NS};
    for (int i = 0; nth && i < BARRIER_STEPS && keep_keeper_lives(); i++) {
        uint32_t granted = keep_orders->granted;
        if ((int32_t)(granted - nth) >= 0)
            return 1;
        keep_plain(SYS_futex, (long)&keep_orders->granted, FUTEX_WAIT, granted, (long)&step, 0, 0);
    }
    return 0;
}
