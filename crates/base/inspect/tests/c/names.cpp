// A thread of control inside templates, namespaces and lambdas.
#include <cstdio>
#include <string>
#include <unistd.h>
#include <vector>

namespace outer {
template <typename T> struct Box {
    __attribute__((noinline)) int hold(const std::vector<T> &v, int n);
};
template <typename T> int Box<T>::hold(const std::vector<T> &v, int n)
{
    for (;;) pause();
    return (int)v.size() + n;
}
__attribute__((noinline)) int call(Box<std::string> &b, std::vector<std::string> &v)
{
    auto l = [&](int n) __attribute__((noinline)) { return b.hold(v, n) + 1; };
    return l(3) + 1;
}
} // namespace outer

int main()
{
    std::puts("ready");
    std::fflush(stdout);
    outer::Box<std::string> b;
    std::vector<std::string> v{"a"};
    return outer::call(b, v) + 1;
}
