// The standard library's containers in an area, read in an orbit; make and destroy; delegate
// objects.
#include "check.h"
#include <map>
#include <orbit.hpp>
#include <string>
#include <vector>

using text = std::basic_string<char, std::char_traits<char>, orbits::allocator<char>>;
using numbers = std::vector<long, orbits::allocator<long>>;
using table = std::map<int, text, std::less<int>, orbits::allocator<std::pair<const int, text>>>;

struct state {
    numbers all;
    table names;
    explicit state(orbit_area *area) : all(area), names(area) {}
};

struct delegate {
    long version;
    state *where;
};
struct large : orbits::delegated<delegate> {
    using delegated::delegated;
    ORBIT_DELEGATE_FIELD(version);
    ORBIT_DELEGATE_FIELD(where);
    char rest[4000] = {};
};

static long inspect(void *, void *args)
{
    const delegate *seen = *static_cast<delegate **>(args);
    long sum = seen->version * 1000000;
    for (long number : seen->where->all)
        sum += number;
    for (const auto &[key, name] : seen->where->names)
        sum += key * long(name.size());
    return sum;
}

// In an orbit containers grow in the orbit's own heap, until the end of the call.
static long grow(void *, void *args)
{
    delegate *seen = *static_cast<delegate **>(args);
    numbers &all = seen->where->all;
    all.reserve(100000);
    all.push_back(1);
    return !orbit_is_from_area(all.data()) && orbit_is_from_area(&all) && all.capacity() >= 100000;
}

struct thrower {
    explicit thrower(int) { throw 7; }
};

int main()
{
    orbits::area area(1 << 16);
    orbit *task = orbit_create("inspect", inspect, nullptr);
    CHECK(task != nullptr);
    orbit_area *areas[] = {area};
    orbit_area_info info;
    {
        auto everything = orbits::make_unique<state>(area, area.get());
        large object(area);
        object.where = everything.get();
        long expected = 0;
        orbit_outcome end;
        for (int i = 0; i < 200; i++) {
            object.version = i;
            object.rest[i] = 1;
            everything->all.push_back(i);
            everything->names.emplace(i, text(std::size_t(i), 'x', area.get()));
            expected += i + long(i) * i;
            delegate *seen = object.delegate();
            CHECK(reinterpret_cast<char *>(&object.version) == reinterpret_cast<char *>(&seen->version));
            GIVES(orbit_call(task, 1, areas, nullptr, &seen, sizeof seen, &end), 0);
            CHECK(end.value == expected + i * 1000000L);
        }
        delegate *seen = object.delegate();
        GIVES(orbit_call(task, 1, areas, grow, &seen, sizeof seen, &end), 0);
        CHECK(end.value == 1);
        everything->names.erase(everything->names.begin(), everything->names.find(100));
        numbers copy(everything->all);
        CHECK(copy.get_allocator() == everything->all.get_allocator());
        int caught = 0;
        try {
            orbits::make<thrower>(area, 1);
        } catch (int seven) {
            caught = seven;
        }
        CHECK(caught == 7);
        struct alignas(256) wide { char bytes[256]; };
        wide *aligned = orbits::make<wide>(area);
        CHECK(reinterpret_cast<std::size_t>(aligned) % 256 == 0);
        orbits::destroy(aligned);
        orbits::destroy(static_cast<wide *>(nullptr));
    }
    GIVES(orbit_area_get_info(area, &info), 0);
    CHECK(info.objects == 0); // everything was freed
    orbit_area_options impossible = ORBIT_AREA_OPTIONS_INIT;
    impossible.engine = 99;
    int number = 0;
    try {
        orbits::area never(impossible);
    } catch (const orbits::error &failure) {
        number = failure.number();
        CHECK(std::string(failure.what()).find("99") != std::string::npos);
    }
    CHECK(number == EINVAL);
    GIVES(orbit_destroy(task), 0);
    return 0;
}
