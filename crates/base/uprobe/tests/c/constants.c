// A function with constants among its code, as assembly often has them: bytes that would be return
// instructions. Called as often as the lines on its input say, and each line is answered when that
// is done and every call got the right constant. First it prints the function's address.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) unsigned long counted(long which);
__asm__(".text\n.globl counted\n.type counted, @function\ncounted:\n"
        "push %rbp\nmov %rsp, %rbp\nlea 1f(%rip), %rax\nand $3, %edi\nmovzbl (%rax,%rdi), %eax\njmp 2f\n"
        "1: .byte 0xc3, 0xc3, 0xc3, 0xc3\n"
        "2: pop %rbp\nret\n.size counted, . - counted\n");

// From far down the stack.
__attribute__((noinline)) static unsigned long deeper(long which) {
    volatile char room[4096];
    room[0] = 1;
    return counted(which) + room[0] - 1;
}

int main(void) {
    printf("%p\n", (void *)counted);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long how = atol(line), times = atol(strchr(line, ' ')), right = 0;
        for (long i = 0; i < times; i++) right += (how ? deeper(i) : counted(i)) == 0xc3;
        printf(right == times ? "done\n" : "%ld of %ld right\n", right, times);
        fflush(stdout);
    }
}
