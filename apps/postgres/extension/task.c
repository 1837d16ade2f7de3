/* The task: finds cycles in the graph of lock waits, and names a victim for each.
 *
 * Runs in the orbit. Uses nothing of PostgreSQL: no shared memory, no elog, no palloc. It reads the
 * packed waits only, which the server's own detector would read from the lock table itself under
 * all its locks.
 *
 * The graph is that of PostgreSQL's detector: a process that waits for a lock is blocked by each
 * group that holds the lock in a conflicting mode, and by each process before it in the lock's
 * queue that waits for a conflicting mode.
 */
#include "waits.h"

#include <orbit.h>
#include <stdlib.h>
#include <string.h>

/* How far the search has come with a wait. */
enum progress { NEW = 0, ON_PATH, DONE, VICTIM };

struct search {
    const struct awaited_lock *locks;
    const struct lock_wait *queue;
    const struct lock_hold *holds;
    int32_t wait_count;
    int32_t *first_of_group; /* by group: the first of its waits, or -1 */
    int32_t *next_of_group;  /* by wait: the next wait of the same group, or -1 */
    uint8_t *progress;       /* by wait: enum progress */
    int32_t *path;           /* the waits from the start of the search to the current one */
    int32_t *position;       /* by position in path: the next blocker to try */
    int32_t *next_member;    /* by position in path: the next wait of the blocker that is being tried, or -1 */
    struct found_cycle *cycle;
};

/* The group of the nth blocker candidate of a wait: the lock's holders first, then its queue up
 * to the wait. -2: this candidate does not block it; -1: there are no more. */
static int32_t blocker(const struct search *s, int32_t wait, int32_t nth)
{
    const struct lock_wait *w = &s->queue[wait];
    const struct awaited_lock *lock = &s->locks[w->lock];
    int32_t group;
    uint32_t modes;
    if (nth < lock->hold_count) {
        group = s->holds[lock->first_hold + nth].group;
        modes = s->holds[lock->first_hold + nth].modes;
    } else {
        int32_t before = lock->first_wait + (nth - lock->hold_count);
        if (before >= wait)
            return -1;
        group = s->queue[before].group;
        modes = s->queue[before].mode;
    }
    return group != w->group && (modes & w->conflicts) ? group : -2;
}

/* The next wait that the one at the end of the path is blocked by, or -1. */
static int32_t next_blocker(struct search *s, int32_t depth)
{
    for (;;) {
        int32_t member = s->next_member[depth];
        int32_t group;
        if (member >= 0) {
            s->next_member[depth] = s->next_of_group[member];
            return member;
        }
        group = blocker(s, s->path[depth], s->position[depth]);
        if (group == -1)
            return -1;
        s->position[depth]++;
        if (group >= 0)
            s->next_member[depth] = s->first_of_group[group];
    }
}

static void enter(struct search *s, int32_t depth, int32_t wait)
{
    s->path[depth] = wait;
    s->position[depth] = 0;
    s->next_member[depth] = -1;
    s->progress[wait] = ON_PATH;
}

/* Depth first from this wait. True: a cycle is in s->cycle. */
static int search_from(struct search *s, int32_t start)
{
    int32_t depth = 0;
    enter(s, 0, start);
    while (depth >= 0) {
        int32_t next = next_blocker(s, depth);
        if (next < 0) {
            s->progress[s->path[depth--]] = DONE;
        } else if (s->progress[next] == NEW) {
            enter(s, ++depth, next);
        } else if (s->progress[next] == ON_PATH) {
            int32_t first = depth;
            while (s->path[first] != next)
                first--;
            s->cycle->length = depth - first + 1;
            memcpy(s->cycle->waits, s->path + first, (size_t)s->cycle->length * sizeof(int32_t));
            return 1;
        }
    }
    return 0;
}

/* The victim that PostgreSQL's own detector would take with deadlock_timeout set to the window.
 * There each process checks once, when it has waited that long: the first check after the cycle
 * was closed finds it, and fails its own process. The cycle was closed by the wait that began
 * last. */
static int32_t choose_victim(const struct search *s, int64_t window)
{
    int64_t closed = 0;
    int32_t victim = 0, latest = 0;
    int64_t first = INT64_MAX;
    for (int32_t i = 0; i < s->cycle->length; i++) {
        int64_t since = s->queue[s->cycle->waits[i]].since;
        if (since == 0)
            since = INT64_MAX;
        if (since >= closed) {
            closed = since;
            latest = i;
        }
    }
    if (closed == INT64_MAX)
        return latest;
    victim = latest;
    for (int32_t i = 0; i < s->cycle->length; i++) {
        int64_t since = s->queue[s->cycle->waits[i]].since;
        if (since + window >= closed && since < first) {
            first = since;
            victim = i;
        }
    }
    return victim;
}

long find_deadlocks(const struct waits *waits, int64_t victim_window,
                    void (*report)(void *what_for, const struct found_cycle *cycle), void *what_for)
{
    struct search s = {waits_locks(waits), waits_queue(waits), waits_holds(waits), waits->wait_count, 0};
    size_t n = (size_t)waits->wait_count + 1, groups = (size_t)waits->group_limit + 1;
    long found = 0;
    s.first_of_group = malloc(groups * sizeof(int32_t));
    s.next_of_group = malloc(n * sizeof(int32_t));
    s.path = malloc(n * sizeof(int32_t));
    s.position = malloc(n * sizeof(int32_t));
    s.next_member = malloc(n * sizeof(int32_t));
    s.progress = calloc(n, 1);
    s.cycle = malloc(sizeof *s.cycle + n * sizeof(int32_t));
    if (!s.first_of_group || !s.next_of_group || !s.path || !s.position || !s.next_member || !s.progress || !s.cycle)
        found = -1;
    if (found == 0) {
        memset(s.first_of_group, 0xff, groups * sizeof(int32_t));
        for (int32_t i = s.wait_count - 1; i >= 0; i--) {
            s.next_of_group[i] = s.first_of_group[s.queue[i].group];
            s.first_of_group[s.queue[i].group] = i;
        }
        for (int32_t start = 0; start < s.wait_count; start++) {
            /* A wait that leads to no cycle stays DONE; where one was found the search begins
             * anew, without the victim. */
            while (s.progress[start] == NEW && search_from(&s, start)) {
                s.cycle->victim = choose_victim(&s, victim_window);
                for (int32_t i = 0; i < s.wait_count; i++)
                    if (s.progress[i] == ON_PATH)
                        s.progress[i] = NEW;
                s.progress[s.cycle->waits[s.cycle->victim]] = VICTIM;
                found++;
                report(what_for, s.cycle);
            }
        }
    }
    free(s.first_of_group);
    free(s.next_of_group);
    free(s.path);
    free(s.position);
    free(s.next_member);
    free(s.progress);
    free(s.cycle);
    return found;
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

static void push_cycle(void *what_for, const struct found_cycle *cycle)
{
    const struct search_args *args = what_for;
    if (args->fault == FAULT_ASSERT_ON_CYCLE)
        abort();
    push(cycle, sizeof *cycle + (size_t)cycle->length * sizeof(int32_t));
}

/* FAULT_LIE: the first waits as a cycle, in both directions; cycles out of range, too long, of
 * one, and of a wrong size. */
static void push_lies(const struct waits *waits)
{
    int32_t n = waits->wait_count;
    const int32_t lies[][4] = {
        {2, 0, 0, 1}, {2, 1, 1, 0}, {2, 0, 0, n}, {2, 0, -1, 0}, {2, 2, 0, 1}, {2, -1, 0, 1}, {1, 0, 0, 0},
            {INT32_MAX, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        push(lies[i], sizeof lies[i]);
    push(lies, 5);
    push(lies, sizeof lies);
}

long search_task(void *store, void *raw)
{
    const struct search_args *args = raw;
    (void)store;
    do_fault(args->fault);
    if (args->fault == FAULT_LIE)
        push_lies(args->waits);
    return find_deadlocks(args->waits, args->victim_window, push_cycle, raw);
}
