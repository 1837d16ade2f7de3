/* Who waits for whom, as the server shows it: InnoDB's own lock table is not reachable from a
 * plugin, since its symbols are hidden.
 *
 * The tables innodb_lock_waits and innodb_trx show one point in time, and are renewed for each scan
 * (clock.c). The list of threads that wait is copied before: a transaction that waits at that
 * point, and whose thread still runs the statement from that list when its wait is ended, has
 * waited in that statement.
 */
#include "plugin.h"

#include <mysql.h>
#include <mysql/plugin.h>
#include <mysql/service_sql.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static MYSQL *connection;
static bool was_detecting;

static bool run(const char *sql)
{
    return mysql_real_query(connection, sql, strlen(sql)) == 0;
}

static MYSQL_RES *ask(const char *sql)
{
    MYSQL_RES *result = run(sql) ? mysql_store_result(connection) : NULL;
    if (!result)
        log_event(true, "%s", mysql_error(connection));
    return result;
}

bool scan_connect(void)
{
    connection = mysql_init(NULL);
    if (connection && mysql_real_connect_local(connection))
        return true;
    scan_disconnect();
    return false;
}

void scan_disconnect(void)
{
    if (connection)
        mysql_close(connection);
    connection = NULL;
}

bool scan_take_over(void)
{
    static const char question[] = "SELECT @@GLOBAL.innodb_deadlock_detect";
    MYSQL_RES *result = run(question) ? mysql_store_result(connection) : NULL;
    MYSQL_ROW row = result ? mysql_fetch_row(result) : NULL;
    bool known = row && row[0];
    was_detecting = known && row[0][0] == '1';
    if (result)
        mysql_free_result(result);
    return known && (!was_detecting || run("SET GLOBAL innodb_deadlock_detect = OFF"));
}

void scan_hand_back(void)
{
    if (was_detecting)
        run("SET GLOBAL innodb_deadlock_detect = ON");
}

/* ---- rows into a graph ---- */

/* A row of the waits: waiter and holder. */
struct pair {
    struct node {
        struct transaction transaction;
        unsigned long thread;
    } waiter, holder;
};

static const char waits_query[] =
    "SELECT r.trx_id, r.trx_weight, r.trx_mysql_thread_id, b.trx_id, b.trx_weight, b.trx_mysql_thread_id "
    "FROM information_schema.innodb_lock_waits w "
    "JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id "
    "JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id";

static struct node node_of(char **columns)
{
    return (struct node){{strtoull(columns[0], NULL, 10), strtoull(columns[1], NULL, 10), 0},
                         strtoul(columns[2], NULL, 10)};
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const struct node *)a)->transaction.id, y = ((const struct node *)b)->transaction.id;
    return (x > y) - (x < y);
}

static int by_waiter(const void *a, const void *b)
{
    const struct wait *x = a, *y = b;
    if (x->waiter != y->waiter)
        return x->waiter < y->waiter ? -1 : 1;
    return (x->holder > y->holder) - (x->holder < y->holder);
}

static int32_t index_of(const struct node *nodes, int32_t count, const struct node *node)
{
    const struct node *found = bsearch(node, nodes, (size_t)count, sizeof *nodes, by_id);
    return (int32_t)(found - nodes);
}

static int32_t sort_nodes(struct node *nodes, const struct pair *pairs, size_t pair_count)
{
    int32_t count = 0;
    for (size_t i = 0; i < pair_count; i++) {
        nodes[2 * i] = pairs[i].waiter;
        nodes[2 * i + 1] = pairs[i].holder;
    }
    qsort(nodes, 2 * pair_count, sizeof *nodes, by_id);
    for (size_t i = 0; i < 2 * pair_count; i++)
        if (count == 0 || nodes[count - 1].transaction.id != nodes[i].transaction.id)
            nodes[count++] = nodes[i];
    return count;
}

static uint64_t hash(const void *bytes, size_t size)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        h = (h ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return h;
}

/* Packs the pairs; false: no memory. */
static bool pack(struct scan *scan, const struct pair *pairs, size_t pair_count)
{
    struct node *nodes = malloc(2 * pair_count * sizeof *nodes + 1);
    struct transaction *transactions;
    struct wait *waits;
    int32_t count;
    if (!nodes)
        return false;
    count = sort_nodes(nodes, pairs, pair_count);
    scan->size = graph_size(count, (int32_t)pair_count);
    scan->graph = calloc(1, scan->size);
    scan->sessions = calloc((size_t)count + 1, sizeof *scan->sessions);
    if (!scan->graph || !scan->sessions) {
        free(nodes);
        return false;
    }
    *scan->graph = (struct graph){count, (int32_t)pair_count};
    transactions = (struct transaction *)graph_transactions(scan->graph);
    waits = (struct wait *)graph_waits(scan->graph);
    for (int32_t i = 0; i < count; i++) {
        transactions[i] = nodes[i].transaction;
        scan->sessions[i].thread = nodes[i].thread;
    }
    for (size_t i = 0; i < pair_count; i++)
        waits[i] = (struct wait){index_of(nodes, count, &pairs[i].waiter), index_of(nodes, count, &pairs[i].holder)};
    qsort(waits, pair_count, sizeof *waits, by_waiter);
    scan->signature = hash(scan->graph, scan->size);
    free(nodes);
    return true;
}

static bool read_pairs(struct scan *scan, MYSQL_RES *rows)
{
    size_t count = 0;
    struct pair *pairs = malloc((size_t)mysql_num_rows(rows) * sizeof *pairs + 1);
    MYSQL_ROW row;
    bool good = pairs != NULL;
    while (good && (row = mysql_fetch_row(rows)))
        if (row[0] && row[1] && row[2] && row[3] && row[4] && row[5])
            pairs[count++] = (struct pair){node_of(row), node_of(row + 3)};
    if (good && count > 0)
        good = pack(scan, pairs, count);
    free(pairs);
    return good;
}

/* Which statement each thread runs, and since when it waits. A thread of replication has none that
 * may be ended, and is the last to be chosen. */
static void note_queries(struct scan *scan, const struct waiting_thread *list, size_t count)
{
    struct transaction *transactions = (struct transaction *)graph_transactions(scan->graph);
    for (size_t k = 0; k < count; k++) {
        for (int32_t i = 0; i < scan->graph->transaction_count; i++) {
            if (scan->sessions[i].thread != list[k].thread)
                continue;
            transactions[i].begun = list[k].begun;
            if (list[k].is_replica)
                transactions[i].weight = UINT64_MAX;
            else
                scan->sessions[i].query = list[k].query;
        }
    }
}

bool scan_waits(struct scan *scan)
{
    struct waiting_thread *list;
    size_t count = waits_list(&list);
    MYSQL_RES *rows;
    bool good;
    memset(scan, 0, sizeof *scan);
    clock_set_ahead(true);
    rows = ask(waits_query);
    clock_set_ahead(false);
    good = rows && read_pairs(scan, rows);
    if (good && scan->graph && list)
        note_queries(scan, list, count);
    if (rows)
        mysql_free_result(rows);
    free(list);
    counters.scans++;
    return good;
}

void scan_free(struct scan *scan)
{
    free(scan->graph);
    free(scan->sessions);
    memset(scan, 0, sizeof *scan);
}

bool scan_end_wait(const struct scan *scan, int32_t victim)
{
    const struct session *session = &scan->sessions[victim];
    char sql[64];
    bool is_ordered;
    if (session->thread == 0 || session->query == 0 || !victims_add(session->thread))
        return false;
    snprintf(sql, sizeof sql, "KILL SOFT QUERY ID %llu", session->query);
    is_ordered = run(sql);
    victims_settle(session->thread, is_ordered);
    return is_ordered;
}
