// orbit.hpp in C++11 to 20, with and without exceptions and RTTI: an area outlives its owner as
// long as an orbit uses it, and in a task containers allocate from the orbit's own heap.
#include "check.h"
#include <map>
#include <orbit.hpp>
#include <string>
#include <unistd.h>
#include <vector>

using numbers = std::vector<long, orbits::allocator<long>>;
using text = std::basic_string<char, std::char_traits<char>, orbits::allocator<char>>;
using table = std::map<int, text, std::less<int>, orbits::allocator<std::pair<const int, text>>>;

struct shape {
    virtual ~shape() {}
    long corners = 0;
};
struct other {
    virtual ~other() {}
};
struct square : other, shape {
};

struct fields {
    long version;
};
struct large : orbits::delegated<fields> {
    using delegated::delegated;
    ORBIT_DELEGATE_FIELD(version);
    char rest[4000];
};

// Copies a container of main's and works on the copy; ends what it made and, in vain, what is
// main's.
static long work(void *, void *args)
{
    const table &seen = **static_cast<table **>(args);
    table mine(seen);
    for (int i = 0; i < 1000; i++)
        mine.emplace(1000 + i, text(100, 'y', seen.get_allocator().area()));
    numbers sums(seen.get_allocator().area());
    long sum = 0;
    for (const auto &pair : mine)
        sums.push_back(long(pair.second.size()));
    for (long length : sums)
        sum += length;
    if (orbit_is_from_area(&*sums.begin()) || !orbit_is_from_area(&seen) || orbit_is_from_area(&sum))
        return -1;
    const_cast<table &>(seen).clear(); // of its picture: gone after the call
    return sum;
}

static bool is_mapped(const void *address)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    bool is = write(ends[1], address, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return is;
}

int main()
{
    orbit *task = orbit_create("work", work, nullptr);
    CHECK(task != nullptr);
    const void *base;
    {
        orbits::area area(1 << 20);
        CHECK(area.get() != nullptr);
        orbits::allocator<std::pair<const int, text>> in(area);
        auto names = orbits::make_unique<table>(area, in);
        for (int i = 0; i < 50; i++)
            names->emplace(i, text(std::size_t(100), 'x', area.get()));
        base = names.get();
        CHECK(orbit_is_from_area(base));
        table *seen = names.get();
        orbit_area *areas[] = {area};
        orbit_outcome end;
        for (int round = 0; round < 3; round++) {
            GIVES(orbit_call(task, 1, areas, nullptr, &seen, sizeof seen, &end), 0);
            CHECK(end.value == 105000);
        }
        CHECK(names->size() == 50);
        orbits::unique_ptr<shape> one = orbits::make_unique<square>(area);
        one->corners = 4;
        large object(area.get());
        object.version = 7;
        CHECK(object.delegate()->version == 7);
        orbits::area moved(std::move(area));
        CHECK(area.get() == nullptr && moved.get() != nullptr);
    }
    CHECK(is_mapped(base)); // the orbit uses it
    GIVES(orbit_destroy(task), 0);
    CHECK(!is_mapped(base));
    {
        orbits::area unused(1 << 16);
        orbits::unique_ptr<long> number = orbits::make_unique<long>(unused, 1);
        base = number.get();
    }
    CHECK(!is_mapped(base));
#if !ORBIT_HPP_EXCEPTIONS
    orbit_area_options impossible = ORBIT_AREA_OPTIONS_INIT;
    impossible.engine = 99;
    orbits::area never(impossible);
    CHECK(never.get() == nullptr && std::string(orbit_last_error()).find("99") != std::string::npos);
    orbits::area full(4096);
    struct huge { char bytes[1 << 30]; };
    CHECK(orbits::make<huge>(full) == nullptr);
#endif
    return 0;
}
