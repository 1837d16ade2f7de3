/* Guests that go to extremes: one part by name. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* 10 GB of address space, used at both ends, forked, given back. */
static int space(void) {
    size_t bytes = 10ul << 30;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 1;
    at[0] = 1;
    at[bytes - 1] = 2;
    pid_t child = fork();
    if (!child) _exit(at[0] + at[bytes - 1]);
    int status;
    waitpid(child, &status, 0);
    return munmap(at, bytes) || WEXITSTATUS(status) != 3;
}

/* A tree of 255 processes, each of which forks twice at once. */
static int tree(int depth) {
    int sum = 1;
    pid_t children[2];
    for (int i = 0; depth && i < 2; i++) {
        children[i] = fork();
        if (children[i] < 0) return 0;
        if (!children[i]) _exit(tree(depth - 1));
    }
    for (int i = 0; depth && i < 2; i++) {
        int status = 0;
        if (waitpid(children[i], &status, 0) < 0 || !WIFEXITED(status)) return 0;
        sum += WEXITSTATUS(status);
    }
    return sum;
}

/* Children in system calls are killed at any moment; the parent and later children are not
 * harmed. */
static int killed(void) {
    srand(1);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (!child)
            for (;;) {
                getppid();
                struct timespec none = {0, 0};
                nanosleep(&none, NULL);
                sigset_t set;
                sigprocmask(SIG_BLOCK, NULL, &set);
            }
        usleep(rand() % 2000);
        int status;
        kill(child, SIGKILL);
        if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) return 1;
    }
    return 0;
}

static long compat(long number) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(0L), "c"(0L), "d"(0L) : "memory", "r8", "r9", "r10", "r11");
    return result;
}

/* A filter of the guest's own: it answers its call, and the guest continues. */
static int filter(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_getpgid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    for (int i = 0; i < 10; i++)
        if (getpgid(0) != -1 || errno != 77) return 2;
    return fork() == 0 ? 0 : wait(NULL) < 0;
}

/* Bad pointers are the kernel's to reject, wherever they point. */
static int pointers(void) {
    for (int i = 0; i < 10; i++) {
        if (syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, NULL, 8) != -1 || errno != EFAULT) return 1;
        if (syscall(SYS_rt_sigaction, SIGUSR1, NULL, (void *)-4096l, 8) != -1 || errno != EFAULT) return 2;
        if (syscall(SYS_rt_sigprocmask, SIG_BLOCK, (void *)(1l << 62), NULL, 8) != -1 || errno != EFAULT) return 3;
        if (syscall(SYS_execve, (void *)16, NULL, NULL) != -1 || errno != EFAULT) return 4;
        if (syscall(SYS_clone3, (void *)24, 88) != -1 || errno != EFAULT) return 5;
        if (syscall(SYS_openat, -100, (void *)32, 0) != -1 || errno != EFAULT) return 6;
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    if (!strcmp(part, "space")) return space();
    if (!strcmp(part, "tree")) return tree(7) != 255;
    if (!strcmp(part, "killed")) return killed();
    if (!strcmp(part, "compat")) return compat(20) != -ENOSYS || getppid() <= 0;
    if (!strcmp(part, "filter")) return filter();
    if (!strcmp(part, "pointers")) return pointers();
    return 99;
}
