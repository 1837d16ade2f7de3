// Containers of std::pmr in an area, read in an orbit; what they need comes from the area and goes
// back to it.
#include "check.h"
#include <memory_resource>
#include <orbit.hpp>
#include <string>
#include <vector>

using words = std::pmr::vector<std::pmr::string>;

static long inspect(void *, void *args)
{
    const words *seen = *static_cast<words **>(args);
    long letters = 0;
    for (const std::pmr::string &word : *seen)
        letters += long(word.size());
    return letters;
}

static size_t used(orbit_area *area)
{
    struct orbit_area_info info;
    CHECK(orbit_area_get_info(area, &info) == 0);
    return info.used;
}

int main()
{
    orbits::area area(1 << 20);
    orbits::memory_resource resource(area);
    orbit *task = orbit_create("inspect", inspect, nullptr);
    CHECK(task != nullptr);
    const std::pmr::string longer("longer than what a string keeps in itself", &resource);
    const size_t before = used(area);
    words *list = orbits::make<words>(area, &resource);
    CHECK(list != nullptr);
    for (int i = 0; i < 1000; i++)
        list->push_back(longer);
    CHECK(orbit_is_from_area(list->data()) && orbit_is_from_area(list->back().data()));
    CHECK(resource.is_equal(resource) && !resource.is_equal(*std::pmr::new_delete_resource()));
    orbit_area *areas[] = {area};
    struct orbit_outcome end;
    GIVES(orbit_call(task, 1, areas, nullptr, &list, sizeof list, &end), 0);
    GIVES(end.value, 1000 * longer.size());
    orbits::destroy(list);
    CHECK(used(area) == before);
    return 0;
}
