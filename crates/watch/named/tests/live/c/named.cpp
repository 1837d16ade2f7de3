// A method in a library that throws through itself while it is healthy, then spins.
#include <stdexcept>

namespace ns {
struct Server {
    volatile long sink = 0;
    long handle(int how);
};

__attribute__((noinline)) static void inside(int how) {
    if (how % 3 == 0) {
        throw std::runtime_error("healthy");
    }
}

__attribute__((noinline)) long Server::handle(int how) {
    for (int i = 0; i < 1000000; i++) {
        sink = sink + i;
    }
    inside(how);
    while (how < 0) {
        sink = sink + 1;
    }
    return sink;
}
} // namespace ns

extern "C" void serve(int how) {
    static ns::Server server;
    try {
        server.handle(how);
    } catch (const std::runtime_error &) {
        server.sink = 0;
    }
}
