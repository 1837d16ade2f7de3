// Calls a function as often as the lines on its input say, and answers each line when that is done.
// First it prints the function's address.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

volatile long sink;
static jmp_buf out;

static void work(long us) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    long end = t.tv_sec * 1000000L + t.tv_nsec / 1000 + us;
    do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    } while (t.tv_sec * 1000000L + t.tv_nsec / 1000 < end);
}

__attribute__((noinline)) long callee(long x) {
    sink += x;
    return x;
}

// Written in assembly so that its exits are known: a return for 0, a tail call for 1, else a second
// return after work.
__attribute__((noinline)) long counted(long how);
__asm__(".text\n.globl counted\n.type counted, @function\ncounted:\n"
        "push %rbx\nmov %rdi, %rbx\ntest %rdi, %rdi\njne 1f\npop %rbx\nret\n"
        "1: cmp $1, %rdi\njne 2f\npop %rbx\njmp callee\n"
        "2: call deeper\npop %rbx\nret\n.size counted, . - counted\n");

// 2: 20 ms of CPU. 3 to 9: calls the function itself, nested. 10: leaves it by longjmp. From 100
// on: as without them, from further down.
__attribute__((used)) void deeper(long how) {
    if (how == 2) {
        work(20000);
    } else if (how < 10) {
        counted(how - 3);
    } else {
        longjmp(out, 1);
    }
}

// From far down the stack.
__attribute__((noinline)) static void below(long how) {
    volatile char room[4096];
    room[0] = 1;
    counted(how);
    sink += room[0];
}

int main(void) {
    printf("%p\n", (void *)counted);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long how = atol(line), times = atol(strchr(line, ' '));
        // Volatile: longjmp comes back into this loop.
        for (volatile long i = 0; i < times; i++) {
            if (setjmp(out) == 0) {
                how < 100 ? (void)counted(how) : below(how - 100);
            }
        }
        printf("done\n");
        fflush(stdout);
    }
}
