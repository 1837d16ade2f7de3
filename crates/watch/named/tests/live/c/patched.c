// Changes the code of a function of its own, and then calls it now and then.
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

volatile long sink;

// push rbx; a no-op of three bytes; pop rbx; ret
__attribute__((noinline)) void request(void);
__asm__(".text\n.globl request\n.type request, @function\nrequest:\n"
        "push %rbx\n.byte 0x0f, 0x1f, 0x00\npop %rbx\nret\n.size request, . - request\n");

int main(void) {
    unsigned char *code = (unsigned char *)(uintptr_t)request;
    unsigned char *page = (unsigned char *)((uintptr_t)code & ~(uintptr_t)4095);
    if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
        return 1;
    // Another no-op of three bytes, in two instructions.
    memcpy(code + 1, "\x66\x90\x90", 3);
    puts("changed");
    fflush(stdout);
    for (;;) {
        request();
        usleep(1000);
    }
}
