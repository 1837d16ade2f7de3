/* The balancer's task: the decisions of the next requests, by the rule of byrequests.
 *
 * With each request every candidate is owed its factor; the one that is owed most is taken, and
 * pays what all were owed. Candidates are the usable workers of the first set that has any. A spare
 * takes the place of a worker of its set that is not usable; standbys come where a set has neither.
 */
#include "tasks.h"

#include <orbit.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool serves(const struct worker_row *row)
{
    return row->is_usable && !row->is_draining;
}

/* Marks the candidates of a set. Standbys only: is_standby. Returns how many. */
static int mark_candidates(const struct balancer_rows *all, int32_t set, bool standby, bool *candidate)
{
    int missing = 0, found = 0;
    for (int32_t i = 0; i < all->count; i++) {
        const struct worker_row *row = &all->rows[i];
        candidate[i] = false;
        if (row->set != set || row->is_standby != standby || row->is_spare)
            continue;
        candidate[i] = serves(row);
        if (candidate[i])
            found++;
        else
            missing++;
    }
    for (int32_t i = 0; i < all->count && missing > 0; i++) {
        const struct worker_row *row = &all->rows[i];
        if (row->set == set && row->is_standby == standby && row->is_spare && serves(row)) {
            candidate[i] = true;
            found++;
            missing--;
        }
    }
    return found;
}

/* The first set in order that has candidates. */
static int choose_candidates(const struct balancer_rows *all, bool *candidate)
{
    bool more = true;
    for (int32_t set = 0; more; set++) {
        more = false;
        for (int32_t i = 0; i < all->count; i++)
            more |= all->rows[i].set > set;
        for (int standby = 0; standby <= 1; standby++) {
            int found = mark_candidates(all, set, standby, candidate);
            if (found > 0)
                return found;
        }
    }
    return 0;
}

/* Fills the schedule; false: no memory. */
static bool decide(const struct balancer_rows *all, int32_t ahead, struct schedule *schedule)
{
    size_t n = (size_t)all->count;
    bool *candidate = calloc(n + 1, sizeof *candidate);
    int64_t *owed = calloc(n + 1, sizeof *owed), total = 0, planned = 0;
    schedule->count = 0;
    if (candidate && owed && choose_candidates(all, candidate) > 0) {
        for (size_t i = 0; i < n; i++) {
            planned += candidate[i] ? all->rows[i].planned : 0;
            total += candidate[i] ? all->rows[i].factor : 0;
        }
        /* What will be owed once the decisions that are made already are used. */
        for (size_t i = 0; i < n; i++)
            owed[i] = all->rows[i].status + planned * all->rows[i].factor - all->rows[i].planned * total;
        while (schedule->count < ahead) {
            size_t best = n;
            for (size_t i = 0; i < n; i++) {
                if (!candidate[i])
                    continue;
                owed[i] += all->rows[i].factor;
                if (best == n || owed[i] > owed[best])
                    best = i;
            }
            owed[best] -= total;
            schedule->decisions[schedule->count++] = (uint16_t)best;
        }
    }
    free(candidate);
    free(owed);
    return candidate && owed;
}

static void push(const void *bytes, size_t size)
{
    struct orbit_update *update = orbit_update_create();
    if (update) {
        orbit_update_add_data(update, bytes, size);
        orbit_push(update);
        orbit_update_free(update);
    }
}

static void push_lies(const struct schedule_args *args)
{
    struct schedule *lie = malloc(sizeof *lie + MOST_AHEAD * sizeof *lie->decisions);
    if (!lie)
        return;
    lie->count = args->ahead;
    for (int i = 0; i < MOST_AHEAD; i++)
        lie->decisions[i] = (uint16_t)(i % 2 ? UINT16_MAX : args->rows->count);
    push(lie, sizeof *lie + (size_t)args->ahead * sizeof *lie->decisions);
    lie->count = INT32_MAX;
    push(lie, sizeof *lie);
    lie->count = -1;
    push(lie, sizeof *lie);
    push(lie, 1);
    free(lie);
}

/* Two fail-over workers, neither usable, each of which names the other. */
static __attribute__((noinline)) int find_route(const int *redirects, const volatile int *usable, int worker)
{
    volatile char frame[512];
    frame[worker] = (char)usable[worker];
    if (frame[worker])
        return worker;
    return find_route(redirects, usable, redirects[worker]) + frame[worker];
}

static int search_unusable_pair(void)
{
    static const int redirects[] = {1, 0};
    static volatile int usable[] = {0, 0};
    return find_route(redirects, usable, 0);
}

long schedule_task(void *store, void *raw)
{
    const struct schedule_args *args = raw;
    struct schedule *schedule;
    bool good;
    (void)store;
    do_fault(args->fault);
    if (args->fault == FAULT_REDIRECT)
        return search_unusable_pair();
    if (args->fault == FAULT_LIE) {
        push_lies(args);
        return 0;
    }
    schedule = malloc(sizeof *schedule + (size_t)args->ahead * sizeof *schedule->decisions);
    good = schedule && decide(args->rows, args->ahead, schedule);
    if (good)
        push(schedule, sizeof *schedule + (size_t)schedule->count * sizeof *schedule->decisions);
    free(schedule);
    return good ? 0 : -1;
}
