// Programs whose functions are named as sections. They never wait in a main loop, so only their
// sections show that they hang. The first argument says how, the second for how many tenths of a
// second they are healthy before.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

volatile long sink;

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// Uses so many milliseconds of CPU.
static void work(double ms) {
    double end = now(CLOCK_THREAD_CPUTIME_ID) + ms / 1e3;
    while (now(CLOCK_THREAD_CPUTIME_ID) < end) {
        for (int i = 0; i < 200; i++) {
            sink += i;
        }
    }
}

__attribute__((noinline)) void inner(int how) {
    work(1);
    while (how == 'i') {
        sink++;
    }
}

// Written so that the compiler keeps two exits: a fast one, and one of slow requests.
__attribute__((noinline)) long request(int how);
__attribute__((used, noinline)) void do_request(int how) {
    work(how == 's' ? 300 : 4);
    inner(how);
    while (how == 'h') {
        sink++;
    }
    while (how == 'o') {
        inner('f');
    }
    if (how == 'p') {
        pause();
    }
}
__asm__(".text\n.globl request\n.type request, @function\nrequest:\n"
        ".cfi_startproc\npushq %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset 3, -16\n"
        "movl %edi, %ebx\ncall do_request\ncmpl $115, %ebx\nje 1f\npopq %rbx\nret\n"
        "1: popq %rbx\nret\n.cfi_endproc\n.size request, . - request\n");

// Some ten microseconds.
__attribute__((noinline)) void hot(void) {
    for (int i = 0; i < 4000; i++) {
        sink += i;
    }
}

// Its loop may begin at its first instruction.
__attribute__((noinline)) void tight(void) {
    for (;;) {
        sink++;
    }
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    double end = now(CLOCK_MONOTONIC) + (argc > 2 ? atof(argv[2]) / 10 : 0);
    if (strcmp(how, "hot") == 0) {
        while (now(CLOCK_MONOTONIC) < end) {
            for (int i = 0; i < 100; i++) {
                hot();
            }
        }
        return 0;
    }
    int slow = strcmp(how, "slow") == 0;
    for (long i = 0; now(CLOCK_MONOTONIC) < end; i++) {
        request(slow && i % 20 == 0 ? 's' : 'f');
    }
    if (strcmp(how, "spin") == 0 || slow) {
        request('h');
    } else if (strcmp(how, "inner") == 0) {
        request('i');
    } else if (strcmp(how, "outer") == 0) {
        request('o');
    } else if (strcmp(how, "pause") == 0) {
        request('p');
    } else if (strcmp(how, "tight") == 0) {
        tight();
    }
    return 0;
}
