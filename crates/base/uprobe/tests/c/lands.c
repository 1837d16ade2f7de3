// Calls a function, which returns for 0 and is left by longjmp for 1, as often as the lines on its
// input say, and answers each line when that is done. Either way its caller continues at the same
// place. First it prints the function's address.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

volatile long sink;
jmp_buf out;

__attribute__((used, noinline)) void deeper(long how) {
    if (how)
        longjmp(out, 1);
    sink++;
}

__attribute__((used, noinline)) void other(void) { sink++; }

__attribute__((noinline)) long counted(long how);
__asm__(".text\n.globl counted\n.type counted, @function\ncounted:\n"
        "push %rbx\ncall deeper\nmov %rdi, %rax\npop %rbx\nret\n.size counted, . - counted\n");

// 2: what follows the call; 3: where longjmp leads, which calls somebody else first, as handlers of
// exceptions do.
void lands(long how);
__asm__(".text\n.globl lands\n.type lands, @function\nlands:\n"
        "push %rbx\nmov %rdi, %rbx\nlea out(%rip), %rdi\ncall _setjmp@PLT\ntest %eax, %eax\njne 3f\n"
        "mov %rbx, %rdi\ncall counted\nmov %rax, %rdi\n"
        "2: test %rbx, %rbx\nje 4f\n4: pop %rbx\nret\n"
        "3: call other\njmp 2b\n.size lands, . - lands\n");

int main(void) {
    printf("%p\n", (void *)counted);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long how = atol(line), times = atol(strchr(line, ' '));
        for (long i = 0; i < times; i++)
            lands(how);
        printf("done\n");
        fflush(stdout);
    }
}
