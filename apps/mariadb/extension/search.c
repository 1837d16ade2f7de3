/* The detector's task: finds the cycles in the graph of waits, and chooses a victim of each: the
 * transaction that InnoDB would take. It then searches on without the victim.
 */
#include "graph.h"

#include <orbit.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum progress { NEW, ON_PATH, DONE, VICTIM };

struct search {
    const struct graph *graph;
    int32_t *first;        /* of each transaction: its first wait; one more at the end */
    int32_t *next;         /* of each on the path: the wait to follow next */
    int32_t *path;
    unsigned char *progress; /* enum progress */
    struct cycle *cycle;
    int32_t fault;
};

static void push(const void *bytes, size_t size)
{
    struct orbit_update *update = orbit_update_create();
    if (update) {
        orbit_update_add_data(update, bytes, size);
        orbit_push(update);
        orbit_update_free(update);
    }
}

/* The position of the cycle, its last wait being 0, after which InnoDB begins to compare: where its
 * search for the cycle, Brent's, has met itself. */
static int32_t meeting_point(int32_t length)
{
    int32_t slow = 0, fast = 0;
    for (int64_t power = 1, steps = 1;; steps++) {
        fast = (fast + 1) % length;
        if (fast == slow)
            return fast;
        if (steps == power) {
            power *= 2;
            steps = 0;
            slow = fast;
        }
    }
}

/* As InnoDB: the least weight; of several the one whose wait has closed the cycle, else the first
 * in InnoDB's order. */
static int32_t choose_victim(const struct search *s)
{
    const struct transaction *all = graph_transactions(s->graph);
    const int32_t length = s->cycle->length, *members = s->cycle->members;
    int32_t closing = 0, victim, at;
    for (int32_t i = 1; i < length; i++)
        if (all[members[i]].begun > all[members[closing]].begun)
            closing = i;
    at = (closing + meeting_point(length)) % length;
    victim = members[closing];
    for (int32_t i = 0; i < length; i++) {
        at = (at + 1) % length;
        if (all[members[at]].weight < all[victim].weight)
            victim = members[at];
    }
    return victim;
}

/* Follows waits from here; true: the cycle is filled. */
static bool search_from(struct search *s, int32_t start)
{
    int32_t depth = 0;
    s->path[0] = start;
    s->next[start] = s->first[start];
    s->progress[start] = ON_PATH;
    while (depth >= 0) {
        int32_t at = s->path[depth], to;
        if (s->next[at] == s->first[at + 1]) {
            s->progress[at] = DONE;
            depth--;
            continue;
        }
        to = graph_waits(s->graph)[s->next[at]++].holder;
        if (s->progress[to] == NEW) {
            s->progress[to] = ON_PATH;
            s->next[to] = s->first[to];
            s->path[++depth] = to;
        } else if (s->progress[to] == ON_PATH) {
            int32_t from = depth;
            while (s->path[from] != to)
                from--;
            s->cycle->length = depth - from + 1;
            memcpy(s->cycle->members, s->path + from, (size_t)s->cycle->length * sizeof(int32_t));
            return true;
        }
    }
    return false;
}

static void report_cycles(struct search *s)
{
    for (int32_t start = 0; start < s->graph->transaction_count; start++) {
        while (s->progress[start] == NEW && search_from(s, start)) {
            if (s->fault == FAULT_ASSERT)
                abort();
            s->cycle->victim = choose_victim(s);
            for (int32_t i = 0; i < s->graph->transaction_count; i++)
                if (s->progress[i] == ON_PATH)
                    s->progress[i] = NEW;
            s->progress[s->cycle->victim] = VICTIM;
            push(s->cycle, sizeof *s->cycle + (size_t)s->cycle->length * sizeof(int32_t));
        }
    }
}

/* The first two transactions as a cycle, whatever they wait for; indexes out of range; lengths
 * that are none. */
static void push_lies(const struct graph *graph)
{
    const int32_t n = graph->transaction_count;
    const int32_t lies[][4] = {
        {2, 0, 0, 1}, {2, 1, 1, 0}, {2, 0, 0, n}, {2, -1, -1, 0}, {2, n, 0, 1}, {1, 0, 0, 0}, {INT32_MAX, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        push(lies[i], sizeof lies[i]);
    push(lies, 5);
}

long search_task(void *store, void *raw)
{
    const struct search_args *args = raw;
    const struct graph *graph = args->graph;
    size_t n = (size_t)graph->transaction_count + 1;
    struct search s = {.graph = graph, .fault = args->fault};
    bool good;
    (void)store;
    do_fault(args->fault);
    if (args->fault == FAULT_LIE)
        push_lies(graph);
    s.first = malloc((n + 1) * sizeof(int32_t));
    s.next = malloc(n * sizeof(int32_t));
    s.path = malloc(n * sizeof(int32_t));
    s.progress = calloc(n, 1);
    s.cycle = malloc(sizeof *s.cycle + n * sizeof(int32_t));
    good = s.first && s.next && s.path && s.progress && s.cycle;
    if (good) {
        for (int32_t i = 0, wait = 0; i <= graph->transaction_count; i++) {
            while (wait < graph->wait_count && graph_waits(graph)[wait].waiter < i)
                wait++;
            s.first[i] = wait;
        }
        report_cycles(&s);
    }
    free(s.first);
    free(s.next);
    free(s.path);
    free(s.progress);
    free(s.cycle);
    return good ? 0 : -1;
}
