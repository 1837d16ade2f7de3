// A task over containers of several kinds, through virtual functions; what else is made has other types.
#include <cstdio>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>
namespace db {
template <class T> struct Node {
    T value;
    Node *next;
};
struct Base {
    virtual ~Base() {}
    virtual int get() const = 0;
};
struct Impl : Base {
    int *numbers;
    std::vector<int> values;
    int get() const override { return values[0] + numbers[1]; }
};
struct Other {
    int x;
};
struct Registry {
    std::vector<std::unique_ptr<Base>> bases;
    std::unordered_map<std::string, std::list<double>> table;
    Node<long> *head = nullptr;
};
Registry *registry;
std::vector<Other> others;
int task() {
    int sum = 0;
    for (auto &base : registry->bases) sum += base->get();
    auto at = registry->table.find("a");
    if (at != registry->table.end())
        for (double d : at->second) sum += d;
    for (Node<long> *n = registry->head; n; n = n->next) sum += n->value;
    return sum;
}
static void build(int n) {
    registry = new Registry(); // SITE
    auto made = std::make_unique<Impl>(); // SITE
    made->numbers = new int[4](); // SITE bytes and numbers
    made->values.push_back(n); // SITE
    registry->bases.push_back(std::move(made)); // SITE
    registry->table["a"].push_back(1.0); // SITE
    registry->head = new Node<long>{1, nullptr}; // SITE
    others.push_back(Other{n});
    auto other = std::make_shared<Other>();
    std::function<int(int)> add = [other](int to) { return to + other->x; };
    std::printf("%d\n", add(n));
}
}
int main() {
    std::thread builder(db::build, 3);
    builder.join();
    std::printf("%d\n", db::task());
}
