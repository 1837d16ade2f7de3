/* Delegate objects (the orbit paper, section 4.6.3, and the effect of its table 5): large structs
 * of which a task reads a few fields, once placed in the area whole, once with only these fields
 * in the area.
 *
 *     c++ -std=c++17 -O2 delegates.cpp $(pkg-config --cflags --libs orbit) -o delegates && ./delegates [ROUNDS]
 *
 * In every round main changes fields that the task does not read in many transactions, changes
 * one field that it does read, and calls the task. Printed for both ways: memory of the area,
 * pages sent with a call, the median time of a call, and rounds a second. Exit status: 0 if the
 * task always saw the right sum.
 */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <orbit.hpp>
#include <vector>

constexpr int transactions = 1000;
constexpr int touched = 200; // transactions whose other fields change in a round

struct lock;

// As it was: 1 KiB, of which the task reads two fields.
struct whole {
    lock *wait_lock = nullptr;
    long version = 0;
    char everything_else[1008] = {};
};

// What the task reads, and the struct that continues as before.
struct transaction_delegate {
    lock *wait_lock;
    long version;
};
struct slim : orbits::delegated<transaction_delegate> {
    using delegated::delegated;
    ORBIT_DELEGATE_FIELD(wait_lock);
    ORBIT_DELEGATE_FIELD(version);
    char everything_else[1008] = {};
};

template <class Seen> struct table {
    Seen *seen[transactions];
};

// The task: adds the versions up.
template <class Seen> long sum(void *, void *args)
{
    const table<Seen> *all = *static_cast<table<Seen> **>(args);
    long total = 0;
    for (const Seen *one : all->seen)
        total += one->wait_lock == nullptr ? one->version : 0;
    return total;
}

struct figures {
    double area_kib, pages, call_us, rounds_per_second;
    bool right;
};

template <class Object, class Seen>
figures run(int rounds, const std::vector<Object *> &objects, table<Seen> *all, orbit_area *area)
{
    orbit *task = orbit_create("sum", sum<Seen>, nullptr);
    if (task == nullptr)
        throw orbits::error(errno);
    std::vector<double> times;
    bool right = true;
    orbit_outcome end;
    orbit_counters before{}, after{};
    orbit_call(task, 1, &area, nullptr, &all, sizeof all, &end); // the first one brings everything over
    orbit_stats(task, &before);
    auto begin = std::chrono::steady_clock::now();
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < touched; i++)
            objects[(round * 31 + i * 5) % transactions]->everything_else[i] += 1;
        objects[round % transactions]->version += 1;
        auto start = std::chrono::steady_clock::now();
        int result = orbit_call(task, 1, &area, nullptr, &all, sizeof all, &end);
        times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
        right &= result == 0 && end.value == round + 1;
    }
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    orbit_stats(task, &after);
    orbit_area_info info;
    orbit_area_get_info(area, &info);
    orbit_destroy(task);
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return {double(info.high_water) / 1024, double(after.pages - before.pages) / rounds, times[rounds / 2],
        rounds / seconds,
            right};
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? std::atoi(argv[1]) : 2000;
    if (argc > 2 || rounds < 1) {
        bool asked = argc == 2 && argv[1] == std::string("--help");
        std::fprintf(asked ? stdout : stderr,
                     "usage: delegates [ROUNDS]\n"
                     "Calls a task that reads two fields of %d transactions ROUNDS times (2000), once with the "
                     "transactions\n"
                     "whole in an area, once with only these fields there, and prints what that saves.\n",
                     transactions);
        return asked ? 0 : 2;
    }
    try {
        orbits::area large(4096);
        auto *wholes = orbits::make<table<whole>>(large);
        std::vector<whole *> whole_objects;
        for (auto &place : wholes->seen)
            whole_objects.push_back(place = orbits::make<whole>(large));
        figures a = run(rounds, whole_objects, wholes, large);

        orbits::area small(4096);
        auto *slims = orbits::make<table<transaction_delegate>>(small);
        std::vector<slim *> slim_objects;
        for (auto &place : slims->seen) {
            slim_objects.push_back(new slim(small.get()));
            place = slim_objects.back()->delegate();
        }
        figures b = run(rounds, slim_objects, slims, small);
        for (slim *object : slim_objects)
            delete object;

        std::printf("%d transactions of 1 KiB, %d touched a round, %d rounds\n", transactions, touched, rounds);
        std::printf("%-14s %12s %12s %14s %12s\n", "", "area KiB", "pages/call", "call us (med)", "rounds/s");
        std::printf("%-14s %12.0f %12.1f %14.1f %12.0f\n", "whole structs", a.area_kib, a.pages, a.call_us,
                    a.rounds_per_second);
        std::printf("%-14s %12.0f %12.1f %14.1f %12.0f\n", "delegates", b.area_kib, b.pages, b.call_us,
                    b.rounds_per_second);
        std::printf("%-14s %11.1f%% %11.1f%% %13.1fx %11.2fx\n", "effect", 100 * (b.area_kib / a.area_kib - 1),
                    100 * (b.pages / a.pages - 1), a.call_us / b.call_us, b.rounds_per_second / a.rounds_per_second);
        return a.right && b.right ? 0 : 1;
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "delegates: %s\n", failure.what());
        return 1;
    }
}
