/* orbit_leveldb.h: LevelDB's compactions in an orbit.
 *
 * A program that links liborbit_leveldb.a in place of libleveldb.a needs no call of these. They
 * change the limits, and say what happened. Any thread, any time.
 */
#ifndef ORBIT_LEVELDB_H
#define ORBIT_LEVELDB_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of compactions; they hold from the next one on. Fields that are 0 keep what they were. */
struct orbit_leveldb_limits {
    uint64_t memory;      /* bytes of memory of the orbit's own; at first 512 MiB. Only before the first compaction */
    uint64_t deadline_us; /* of one try, microseconds; at first 30 s and 1 s more for each 4 MiB of input */
    uint32_t tries;       /* failed ones after which LevelDB compacts in its own way; at first 3 */
    uint32_t reserved;    /* 0 */
};
void orbit_leveldb_set_limits(const struct orbit_leveldb_limits *limits);

/* What happened in this process so far, in all its databases. */
struct orbit_leveldb_counters {
    uint64_t compactions;    /* done by the orbit and installed */
    uint64_t failures;       /* tries that crashed, were killed, came too late, or gave something unusable */
    uint64_t own;            /* compactions that LevelDB did in its own way */
    uint64_t memtables;      /* memtables that main wrote out while the orbit compacted */
    int32_t pid;             /* the orbit's process, 0: none now */
    int32_t is_running;      /* 1 while the orbit compacts */
    uint64_t minor;          /* memtables that the orbit wrote to tables */
    uint64_t minor_failures; /* such tries that failed */
    uint64_t minor_own;      /* memtables that LevelDB wrote in its own way, empty ones too */
    uint64_t minor_pages;    /* pages of snapshots for these, of 4 KiB */
    int32_t minor_pid;       /* the process of the orbit for memtables, 0: none now */
    int32_t is_minor_running; /* 1 while it writes */
};
void orbit_leveldb_get_counters(struct orbit_leveldb_counters *counters);

/* For tests: the next `count` tries do this harm, half-way through the first output. */
enum orbit_leveldb_fault {
    ORBIT_LEVELDB_GOOD = 0,
    ORBIT_LEVELDB_NULL_WRITE = 1,
    ORBIT_LEVELDB_ENDLESS_LOOP = 2,
    ORBIT_LEVELDB_MEMORY = 3,
    ORBIT_LEVELDB_RECURSION = 4,
    ORBIT_LEVELDB_WRONG_RESULT = 5, /* reports keys and sizes that the files do not have */
    ORBIT_LEVELDB_OF_MEMTABLES = 256 /* added to one of these: when a memtable is written, not in a major compaction */
};
void orbit_leveldb_inject(int fault, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
