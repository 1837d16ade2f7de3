// Calls a function as often as it can, in bursts between short sleeps, until its input ends.
#include <poll.h>

volatile long sink;

__attribute__((noinline)) void work(long n) {
    for (long i = 0; i < n; i++)
        sink += i;
}

int main(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 1) == 0)
        for (int i = 0; i < 20000; i++)
            work(500);
}
