// Calls a function as often as it can, in bursts between short sleeps, until its input ends or a minute is over.
#include <poll.h>
#include <time.h>

volatile long sink;

__attribute__((noinline)) void work(long n) {
    for (long i = 0; i < n; i++)
        sink += i;
}

int main(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (time_t end = time(0) + 60; time(0) < end && poll(&input, 1, 1) == 0;)
        for (int i = 0; i < 20000; i++)
            work(500);
}
