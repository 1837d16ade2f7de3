/* An audit of a large index that grows meanwhile: the index lies in an area whose memory is the
 * snapshot (ORBIT_ENGINE_SHARE), so that a call takes as long for gigabytes as for megabytes, and
 * there is no second copy.
 *
 *     c++ -std=c++17 -O2 audit.cpp $(pkg-config --cflags --libs orbit) -o audit && ./audit [MIB]
 *
 * Main adds records to the index and changes old ones, all the time. A task checks each record and
 * adds all of them up, as they were at its call; what it finds must be what main had counted then.
 * The next audit begins when one has ended, until the index has MIB MiB (256). Printed: how many
 * audits there were and how many were wrong, and the longest time that a call took. Exit status: 0
 * if all were right.
 */
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <orbit.hpp>
#include <string>
#include <vector>

struct record {
    std::uint64_t key, value, check;
};

constexpr std::size_t block_records = 40000;
constexpr std::size_t most_blocks = 8192;

struct block {
    std::size_t used;
    record records[block_records];
};

struct index {
    std::size_t blocks;
    std::uint64_t total; // of all values, as main has counted
    block *all[most_blocks];
};

static std::uint64_t mixed(std::uint64_t key, std::uint64_t value)
{
    std::uint64_t x = (key ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9 + value;
    return x ^ x >> 29;
}

// The task: the number of records; -1 if one of them, or their total, is wrong.
static long audit(void *, void *args)
{
    const index *seen = *static_cast<index **>(args);
    std::uint64_t total = 0;
    long records = 0;
    for (std::size_t at = 0; at < seen->blocks; at++)
        for (std::size_t i = 0; i < seen->all[at]->used; i++, records++) {
            const record &one = seen->all[at]->records[i];
            if (one.check != mixed(one.key, one.value))
                return -1;
            total += one.value;
        }
    return total == seen->total ? records : -1;
}

struct writer {
    index *all;
    orbit_area *area;
    std::uint64_t state = 88172645463325252;
    long records = 0;

    std::uint64_t next()
    {
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    }

    void set(record &one, std::uint64_t key, std::uint64_t value)
    {
        all->total += value - one.value;
        one = {key, value, mixed(key, value)};
    }

    // Adds records, and changes an old one for every sixteen; false once the area is full.
    bool step(int count)
    {
        for (int i = 0; i < count; i++) {
            if (all->blocks == 0 || all->all[all->blocks - 1]->used == block_records) {
                void *memory = all->blocks < most_blocks ? orbit_alloc(area, sizeof(block)) : nullptr;
                if (memory == nullptr)
                    return false;
                all->all[all->blocks] = static_cast<block *>(memory);
                all->all[all->blocks]->used = 0;
                all->blocks += 1;
            }
            block *last = all->all[all->blocks - 1];
            last->records[last->used].value = 0;
            set(last->records[last->used], next(), next() >> 32);
            last->used += 1;
            records += 1;
            if (i % 16 != 0)
                continue;
            block *any = all->all[next() % all->blocks];
            record &old = any->records[next() % any->used];
            set(old, old.key, next() >> 32);
        }
        return true;
    }
};

static orbits::area area_of(std::size_t bytes)
{
    orbit_area_options options = ORBIT_AREA_OPTIONS_INIT;
    options.name = "index";
    options.init_size = options.limit = bytes;
    options.engine = ORBIT_ENGINE_SHARE;
    try {
        return orbits::area(options);
    } catch (const orbits::error &error) {
        std::printf("%s\n", error.what());
        options.engine = ORBIT_ENGINE_AUTO;
        return orbits::area(options);
    }
}

int main(int argc, char **argv)
{
    int mib = argc > 1 ? std::atoi(argv[1]) : 256;
    if (argc > 2 || mib < 4 || mib > 7000) {
        bool asked = argc == 2 && argv[1] == std::string("--help");
        std::fprintf(asked ? stdout : stderr,
                     "usage: audit [MIB]\n"
                     "Audits an index, again and again, while it grows to MIB MiB (256; 4 to 7000).\n");
        return asked ? 0 : 2;
    }
    try {
        orbits::area area = area_of(std::size_t(mib) << 20);
        writer main{orbits::make<index>(area), area};
        orbit *task = orbit_create("audit", audit, nullptr);
        if (task == nullptr)
            throw orbits::error(errno);
        orbit_area *areas[] = {area};
        orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
        options.flags = ORBIT_QUIET; // this thread alone writes to the index
        long audits = 0, wrong = 0;
        double longest = 0;
        for (bool grows = true; grows; audits++) {
            grows = main.step(1000);
            long expected = main.records;
            auto start = std::chrono::steady_clock::now();
            orbit_future *call = orbit_call_async_with(task, 1, areas, &main.all, sizeof main.all, &options);
            longest = std::max(
                longest,
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
            if (call == nullptr)
                throw orbits::error(errno);
            orbit_outcome end;
            while (orbit_future_poll(call, &end) == -EINPROGRESS)
                grows = grows && main.step(1000);
            wrong += end.kind != ORBIT_RETURNED || end.value != expected;
            orbit_future_free(call);
        }
        orbit_destroy(task);
        std::printf("%ld records, %ld audits, %ld wrong, longest call %.3f ms\n", main.records, audits, wrong, longest);
        return wrong == 0 ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "audit: %s\n", error.what());
        return 1;
    }
}
