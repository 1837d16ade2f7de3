// Sections whose exits are not known. `turns` jumps back to its first instruction and is left by a
// jump through a pointer, always from the same depth of the stack. `constants` has constants among
// its code with the bytes of returns. The first argument says which, and what it does when it was
// healthy for as many tenths of a second as the second says: `turns` (nothing), `endless` (`turns`
// turns without end), `constants` (CPU outside for a second and a half, then it spins inside).
#include <stdlib.h>
#include <string.h>
#include <time.h>

volatile long sink;

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void burn(double ms) {
    double end = now(CLOCK_THREAD_CPUTIME_ID) + ms / 1e3;
    while (now(CLOCK_THREAD_CPUTIME_ID) < end) {
        sink++;
    }
}

__attribute__((noinline, used)) void inside(long how) {
    burn(1);
    while (how == 's') {
        sink++;
    }
}

__attribute__((noinline)) static void done(long x) {
    sink += x;
}
void (*leave)(long) = done;

// do inside(n) while (--n), by way of the first instruction; then leave(n).
long turns(long n);
__asm__(".text\n.globl turns\n.type turns, @function\nturns:\n.cfi_startproc\n"
        "push %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset 3, -16\nmov %rdi, %rbx\nxor %edi, %edi\ncall inside\nlea "
        "-1(%rbx), %rdi\n"
        "pop %rbx\n.cfi_def_cfa_offset 8\n.cfi_restore 3\ntest %rdi, %rdi\njne turns\njmp "
        "*leave(%rip)\n.cfi_endproc\n.size turns, . - turns\n");

long constants(long how);
__asm__(".text\n.globl constants\n.type constants, @function\nconstants:\n.cfi_startproc\n"
        "push %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset 6, -16\nmov %rsp, %rbp\ncall inside\njmp 1f\n"
        ".byte 0xc3, 0xc3\n1: pop %rbp\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size constants, . - constants\n");

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    double end = now(CLOCK_MONOTONIC) + (argc > 2 ? atof(argv[2]) / 10 : 0);
    while (now(CLOCK_MONOTONIC) < end) {
        if (how[0] == 'c') {
            constants(0);
        } else {
            turns(2);
        }
    }
    if (how[0] == 'e') {
        turns(0);
    } else if (how[0] == 'c') {
        burn(1500);
        constants('s');
    }
    return 0;
}
