/* An in-memory SQLite database in a heap that an orbit is shown: a query runs on a snapshot while
 * the program writes on.
 *
 *   query ROWS ROUNDS [FAULT]      FAULT: the second query does this harm first (segv, hang, memory, recursion, kill)
 *
 * To be run with jemalloc preloaded. Prints for each round what the query should say and what it
 * said. SQLite is the distribution's; its objects are found by no list: the whole heap is in areas.
 */
#include <errno.h>
#include <orbit.h>
#include <orbit_jemalloc.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "fault.h"
#include "task.h"

struct query {
    sqlite3 *db;
    const char *sql; /* of the program's file: at the same address in the orbit */
    int32_t fault;
};

static struct orbit_jemalloc heap;

static long first_number(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *statement = NULL;
    long value = -1;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) == SQLITE_OK && sqlite3_step(statement) == SQLITE_ROW)
        value = (long)sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return value;
}

/* In the orbit. */
static long run_query(void *store, void *raw)
{
    const struct query *query = raw;
    (void)store;
    do_fault(query->fault);
    return first_number(query->db, query->sql);
}

static void die(const char *what)
{
    fprintf(stderr, "query: %s: %s\n", what, orbit_last_error());
    exit(1);
}

/* The library and the orbit, made before the heap: they allocate outside of it. */
static struct orbit *make_orbit(void)
{
    struct task_process task;
    struct orbit *orbit;
    task_describe(&task, "query", run_query, (uint64_t)256 << 20);
    task.options.deadline_us = 5 * 1000 * 1000;
    if (orbit_init() < 0 || !(orbit = orbit_create_with(&task.options)))
        die("no orbit");
    return orbit;
}

static sqlite3 *make_database(int rows)
{
    sqlite3 *db = NULL;
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(":memory:", &db, flags, NULL) != SQLITE_OK)
        die("no database");
    sqlite3_exec(db, "CREATE TABLE t(id INTEGER PRIMARY KEY, v INTEGER, text TEXT); BEGIN", NULL, NULL, NULL);
    for (int i = 0; i < rows; i++) {
        char sql[100];
        snprintf(sql, sizeof sql, "INSERT INTO t VALUES(%d, 1, 'a text of row %d')", i, i);
        sqlite3_exec(db, sql, NULL, NULL, NULL);
    }
    sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
    return db;
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* One query in the orbit, with updates until it has ended. */
static void one_round(struct orbit *orbit, sqlite3 *db, int round, int32_t fault)
{
    struct query query = {db, "SELECT sum(v) FROM t", fault};
    struct orbit_outcome outcome;
    struct orbit_future *future;
    long expected = first_number(db, query.sql), updates = 0;
    double began = now_ms(), called;
    if (orbit_jemalloc_adopt(&heap) < 0)
        die("the heap cannot be shown");
    future = orbit_call_async(orbit, 0, heap.area_count, heap.areas, NULL, &query, sizeof query);
    called = now_ms();
    if (!future)
        die("no call");
    while (orbit_future_poll(future, &outcome) == -EINPROGRESS) {
        sqlite3_exec(db, "UPDATE t SET v = v + 1 WHERE id = abs(random()) % 1000", NULL, NULL, NULL);
        updates++;
    }
    /* Waiting finds the names of a crash's functions, which a poll does not wait for. */
    if (outcome.kind != ORBIT_RETURNED)
        orbit_future_wait(future, &outcome);
    if (outcome.kind == ORBIT_RETURNED)
        printf("round %d expected %ld got %ld blocked_ms %.2f took_ms %.1f updates "
            "%ld\n", round, expected, outcome.value,
               called - began, now_ms() - began, updates);
    else
        printf("round %d failed: %s\n", round, outcome.text);
    orbit_future_free(future);
    /* What the library's own thread has allocated and this one has freed, as a crash's text,
     * lies outside of the heap: not for SQLite. */
    orbit_jemalloc_enter(&heap);
}

int main(int argc, char **argv)
{
    int rows = argc > 1 ? atoi(argv[1]) : 100000, rounds = argc > 2 ? atoi(argv[2]) : 10, error;
    int32_t fault = argc > 3 ? fault_by_name(argv[3], NULL) : FAULT_NONE;
    struct orbit *orbit;
    sqlite3 *db;
    /* Buffers that SQLite would share between what the task and the program do. */
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
    sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0);
    sqlite3_initialize();
    orbit = make_orbit();
    error = orbit_jemalloc_init(&heap);
    if (error != 0) {
        fprintf(stderr, "query: start it with jemalloc in LD_PRELOAD (%d)\n", error);
        return 1;
    }
    db = make_database(rows);
    for (int round = 0; round < rounds; round++)
        one_round(orbit, db, round, round == 1 ? fault : FAULT_NONE);
    printf("rows %ld areas %zu\n", first_number(db, "SELECT count(*) FROM t"), heap.area_count);
    sqlite3_close(db);
    orbit_shutdown();
    return 0;
}
