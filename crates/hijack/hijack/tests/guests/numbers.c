/* Numbers and options with bits that the kernel ignores: argument 1 is a file to remove. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ABOVE (1ul << 32)

static long call(unsigned long number, unsigned long a, void *b, void *c) {
    long result;
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

int main(int count, char **words) {
    (void)count;
    unsigned long path = (unsigned long)words[1];
    printf("unlink %ld\n", call(SYS_unlink, path, 0, 0));
    printf("unlink above %ld\n", call(SYS_unlink | ABOVE, path, 0, 0));
    printf("unlink x32 %ld\n", call(SYS_unlink | 1ul << 30, path, 0, 0));
    printf("dispatch off above %ld\n", call(SYS_prctl | ABOVE, 59 | ABOVE, 0, 0));
    printf("gs above %ld\n", call(SYS_arch_prctl, 0x1001 | ABOVE, 0, 0));
    printf("unlink after all %ld\n", call(SYS_unlink, path, 0, 0));
    printf("kill above %ld\n", call(SYS_kill, (unsigned)getpid() | ABOVE, 0, 0));
    fflush(stdout);
    if (!fork()) {
        char *arguments[] = {"rm", words[1], NULL};
        call(SYS_execve | ABOVE, (unsigned long)"/bin/rm", arguments, environ);
        _exit(9);
    }
    int status;
    wait(&status);
    printf("rm %d\n", WEXITSTATUS(status));
    return 0;
}
