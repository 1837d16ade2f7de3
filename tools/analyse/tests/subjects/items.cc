// A task over a std::map of unique_ptr to objects with a std::string: nodes, items and texts are made in one function each.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>
struct Item {
    int id;
    std::string name;
    long unused[4];
};
std::map<int, std::unique_ptr<Item>> items;
std::vector<std::string> noise;
namespace tasks {
__attribute__((noinline)) long total(long start) {
    long sum = start;
    for (auto &[key, item] : items) sum += item->id + item->name.size() + item->name[3];
    return sum;
}
}
static void fill(int id) {
    auto item = std::make_unique<Item>(); // SITE item
    item->id = id;
    item->name = std::string(40 + id, 'x'); // SITE text
    noise.push_back(std::string(60, 'n')); // NOISE
    items.emplace(id, std::move(item)); // SITE node
}
// A type that the task does not touch.
struct Other { long values[8]; };
static void fill_others() {
    static std::vector<std::unique_ptr<Other>> others;
    for (int id = 0; id < 20; id++) others.push_back(std::make_unique<Other>()); // OTHER
}
int main() {
    for (int id = 0; id < 20; id++) fill(id);
    fill_others();
    printf("%ld\n", tasks::total(1));
}
