// A server that Ctrl-C ends: the signal goes to it and to what started it.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static int *counts;

__attribute__((noinline)) int task(void) { return counts[3]; }

int main(void) {
    counts = calloc(10, sizeof *counts); // SITE counts
    int sum = task();
    kill(getppid(), SIGINT);
    kill(getpid(), SIGINT);
    for (;;) sum += pause();
}
