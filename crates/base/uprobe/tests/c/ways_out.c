// Calls a function that is left in many ways as often as the lines on its input say, and answers
// each line when that is done. First it prints the function's address.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

volatile long sink;

__attribute__((noinline)) long callee(long x) {
    sink += x;
    return sink & 1;
}

__attribute__((noinline)) void fill(char *room, long n) {
    memset(room, (int)n, 16);
    sink += room[3];
}

__attribute__((noinline)) long counted(long how) {
    char room[24];
    if (how == 0)
        return 7;
    fill(room, how);
    if (how == 1)
        return callee(room[0]) + 1;
    if (how == 2)
        return callee(5);
    for (long i = 0; i < how; i++) {
        if (room[i & 15] == 77)
            return i;
        sink += i;
    }
    switch (how) {
    case 3:
        callee(room[1]);
        break;
    case 4:
        sink = 4;
        return callee(room[2]) ? 12 : callee(9) + 3;
    case 5:
        fill(room + 4, 5);
        return room[5];
    case 6:
        return how;
    case 7:
        while (callee(1) && callee(2) < 3 && sink % 5)
            sink++;
        return 1;
    case 8:
        return room[8] > 3 && callee(room[9]) ? -1 : 1;
    }
    return sink + room[7];
}

// Calls it from elsewhere, and continues in another way.
__attribute__((noinline)) long twice(long how) {
    long a = counted(how);
    if (a == 123456)
        sink = a;
    long b = counted(how);
    if (b == 123457)
        sink = b;
    return a + b;
}

// Calls it, and then returns without any jump.
__attribute__((noinline)) long straight(long how) {
    return counted(how) + 1;
}

// Calls it now and then, in a loop that continues at the place behind the call most of the time
// without it: twice in 3 million turns.
long rarely(long how);
__asm__(".text\n.globl rarely\n.type rarely, @function\nrarely:\n"
        "push %rbx\npush %rbp\npush %r12\nmov %rdi, %rbp\nmov $3000000, %ebx\nmov $1500000, %r12d\n"
        "1: dec %r12\njne 2f\nmov $1500000, %r12d\nmov %rbp, %rdi\ncall counted\nmov %rax, %rdi\n"
        "2: dec %rbx\njne 1b\n"
        "pop %r12\npop %rbp\npop %rbx\nret\n.size rarely, . - rarely\n");

// The same, but what comes next begins right behind the call.
long at_once(long how);
__asm__(".text\n.globl at_once\n.type at_once, @function\nat_once:\n"
        "push %rbx\npush %rbp\npush %r12\nmov %rdi, %rbp\nmov $3000000, %ebx\nmov $1500000, %r12d\n"
        "1: dec %r12\njne 2f\nmov $1500000, %r12d\nmov %rbp, %rdi\ncall counted\n"
        "2: dec %rbx\njne 1b\n"
        "pop %r12\npop %rbp\npop %rbx\nret\n.size at_once, . - at_once\n");

int main(void) {
    printf("%p\n", (void *)counted);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long how = atol(line), times = atol(strchr(line, ' '));
        for (long i = 0; i < times; i++) {
            if (how < 100)
                sink += counted(how);
            else if (how < 200)
                sink += twice(how - 100);
            else if (how < 300)
                sink += straight(how - 200);
            else if (how < 400)
                sink += rarely(how - 300);
            else
                sink += at_once(how - 400);
        }
        printf("done\n");
        fflush(stdout);
    }
}
