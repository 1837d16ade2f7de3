// A section that is left by ways which no probe sees. `work` takes 2 ms and returns, called from
// deep down the stack; once, from `main`, it is left in the way that the first argument says:
// `longjmp`, `throw`, `virtual` (a call through a table in tail position). Then the healthy calls
// continue for as many tenths of a second as the second argument says. `outside`: left by an
// exception, then so much CPU outside, then it spins inside. `itself`: it calls itself without end.
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>

static jmp_buf out;
volatile long sink;

static double now(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void burn(double ms) {
    double end = now(CLOCK_THREAD_CPUTIME_ID) + ms / 1e3;
    while (now(CLOCK_THREAD_CPUTIME_ID) < end) {
        sink = sink + 1;
    }
}

static void healthy(double seconds);

extern "C" __attribute__((noinline)) void inner(int how) {
    burn(2);
    if (how == 'l') {
        longjmp(out, 1);
    } else if (how == 't' || how == 'o') {
        throw std::runtime_error("healthy");
    }
    while (how == 's') {
        sink = sink + 1;
    }
    if (how == 'i') {
        healthy(1e9);
    }
}

struct Base {
    virtual void done(int x);
};
__attribute__((noinline)) void Base::done(int x) {
    sink = sink + x;
}
static Base base;
Base *volatile the_base = &base;

extern "C" __attribute__((noinline)) void work(int how) {
    inner(how);
    if (how == 'v') {
        the_base->done(how);
        return;
    }
    sink = sink + 1;
    __asm__ volatile("nop");
}

__attribute__((noinline)) static void deeper(int how) {
    volatile char room[4096];
    room[0] = (char)how;
    work(how);
    sink = sink + room[0];
}

__attribute__((noinline)) static void healthy(double seconds) {
    for (double end = now(CLOCK_MONOTONIC) + seconds; now(CLOCK_MONOTONIC) < end;) {
        deeper(0);
    }
}

int main(int argc, char **argv) {
    int how = argc > 1 ? argv[1][0] : 0;
    double seconds = argc > 2 ? atof(argv[2]) / 10 : 0;
    healthy(3);
    if (setjmp(out) == 0) {
        try {
            work(how);
        } catch (const std::runtime_error &) {
            sink = sink + 1;
        }
    }
    if (how == 'o') {
        burn(seconds * 1e3);
        deeper('s');
    }
    healthy(seconds);
    return 0;
}
