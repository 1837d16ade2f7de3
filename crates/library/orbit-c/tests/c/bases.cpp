// Objects in an area end through pointers to any base and to const; what would free a wrong address
// does not compile.
#include "check.h"
#include <memory>
#include <orbit.hpp>

static int ended;

struct first {
    virtual ~first() {}
    long a[3] = {};
};
struct second {
    virtual ~second() {}
    long b[3] = {};
};
struct both : first, second {
    ~both() override { ended++; }
};
struct root {
    virtual ~root() {}
    long r = 0;
};
struct left : virtual root {
    long l = 0;
};
struct bottom : second, left {
    ~bottom() override { ended++; }
};
struct plain {
    long p = 0;
};
struct late_vtable : plain { // its base lies behind the pointer that the virtual destructor brings
    virtual ~late_vtable() { ended++; }
};
struct no_virtual_end {
    virtual long get() const { return 0; }
};
struct of_it : no_virtual_end {
};
struct unknown;

template <class From, class To>
constexpr bool becomes = std::is_convertible_v<orbits::unique_ptr<From>, orbits::unique_ptr<To>>;
static_assert(becomes<both, first> && becomes<both, second> && becomes<bottom, root>);
static_assert(becomes<both, const second> && becomes<long, const long> && becomes<plain, const plain>);
static_assert(!becomes<late_vtable, plain> && !becomes<of_it, no_virtual_end>);
static_assert(!becomes<first, both> && !becomes<const plain, plain> && !becomes<const both, first>);
static_assert(sizeof(orbits::unique_ptr<both>) == sizeof(both *));
static_assert(std::is_move_constructible_v<orbits::unique_ptr<unknown>>);

static std::size_t objects(orbit_area *area)
{
    orbit_area_info info;
    GIVES(orbit_area_get_info(area, &info), 0);
    return info.objects;
}

int main()
{
    orbits::area area(1 << 16);
    {
        orbits::unique_ptr<first> one = orbits::make_unique<both>(area);
        orbits::unique_ptr<second> two = orbits::make_unique<both>(area);
        orbits::unique_ptr<const second> three = orbits::make_unique<both>(area);
        orbits::unique_ptr<root> four = orbits::make_unique<bottom>(area);
        std::shared_ptr<second> five = orbits::make_unique<bottom>(area);
        CHECK(objects(area) == 5);
        two = orbits::make_unique<bottom>(area);
        CHECK(objects(area) == 5 && ended == 1);
    }
    CHECK(objects(area) == 0 && ended == 6);

    orbits::destroy(static_cast<second *>(orbits::make<both>(area)));
    orbits::destroy(static_cast<root *>(orbits::make<bottom>(area)));
    orbits::destroy(static_cast<const volatile second *>(orbits::make<both>(area)));
    orbits::destroy(static_cast<second *>(nullptr));
    CHECK(objects(area) == 0 && ended == 9);

    {
        auto number = orbits::make_unique<const long>(area, 7L);
        auto table = orbits::make_unique<const both>(area);
        orbits::unique_ptr<const plain> bare = orbits::make_unique<plain>(area);
        auto late = orbits::make_unique<late_vtable>(area);
        CHECK(*number == 7 && objects(area) == 4);
    }
    CHECK(objects(area) == 0 && ended == 11);
    return 0;
}
