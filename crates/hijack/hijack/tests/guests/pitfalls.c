/*
 * What rewriting of code gets wrong elsewhere, one part each; prints what is wrong and counts it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int failures;
#define CHECK(what)                                            \
    do {                                                       \
        if (!(what)) failures++, printf("wrong: %s\n", #what); \
    } while (0)

/* 300 sites `mov $getpid, %eax; syscall`, and 300 `syscall` with the number from a register
 * beside a long NOP. */
#define SITES 300
__asm__(
    ".text\n.p2align 4\nmov_sites:\n.rept 300\n.p2align 4\nmov $39, %eax\nsyscall\nret\n.endr\n"
    ".p2align 5\npad_sites:\n.rept 300\n.p2align 5\nmov %rdi, %rax\nsyscall\nret\n.byte 0x0f, 0x1f, 0x84, 0, 0, 0, "
    "0, 0\n.endr\n"
    /* One site that is also entered at its syscall instruction. */
    ".p2align 4\ntwo_ways: mov $39, %eax\nsecond_way: syscall\nret\n"
    /* A value in the red zone over a call. */
    ".p2align 4\nred_zone: mov %rdi, -8(%rsp)\nmov $39, %eax\nsyscall\nmov -8(%rsp), %rax\nret\n"
    /* Bytes of a syscall instruction that are data, and part of another instruction. */
    ".p2align 4\ndata: .byte 0xb8, 0x27, 0, 0, 0, 0x0f, 0x05\n"
    ".p2align 4\nhidden: mov $0x050f, %eax\nret\n"
    /* All registers that a call keeps. */
    ".p2align 4\nregisters:\npush %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov $1, %rbx\nmov $2, %rbp\nmov $3, %r12\nmov $4, %r13\nmov $5, %r14\nmov $6, %r15\nmov $7, %rdi\nmov $8, %rsi\n"
    "mov $9, %rdx\nmov $10, %r8\nmov $11, %r9\nmov $12, %r10\nmovq %rbx, %xmm0\nmovq %r15, %xmm15\nmov $39, "
    "%eax\nsyscall\n"
    "lea (%rbx, %rbp), %rax\nadd %r12, %rax\nadd %r13, %rax\nadd %r14, %rax\nadd %r15, %rax\nadd %rdi, %rax\nadd "
    "%rsi, %rax\n"
    "add %rdx, %rax\nadd %r8, %rax\nadd %r9, %rax\nadd %r10, %rax\nmovq %xmm0, %rcx\nadd %rcx, %rax\nmovq %xmm15, "
    "%rcx\n"
    "add %rcx, %rax\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n");
extern char mov_sites[], pad_sites[];
extern const unsigned char data[];
long two_ways(void), second_way(void), red_zone(long), hidden(void), registers(void);

static pid_t self;
static long wrong;

static void *run_sites(void *argument) {
    for (int round = 0; round < 30; round++)
        for (int i = 0; i < SITES; i++) {
            long (*mov)(void) = (long (*)(void))(mov_sites + 16 * i);
            long (*pad)(long) = (long (*)(long))(pad_sites + 32 * i);
            if (mov() != self || pad(SYS_getpid) != self) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
        }
    return argument;
}

static int writable_code(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;
    while (fgets(line, sizeof line, maps)) {
        char rights[8] = "", path[256] = "";
        sscanf(line, "%*s %7s %*s %*s %*s %255s", rights, path);
        if (!strcmp(rights, "rwxp") && strstr(path, "/") && !strstr(path, "hijack")) found++;
    }
    fclose(maps);
    return found;
}

int main(void) {
    self = getpid();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, run_sites, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK(wrong == 0);
    for (int i = 0; i < 20; i++) {
        CHECK(two_ways() == self);
        CHECK(red_zone(0x1234) == 0x1234);
        CHECK(hidden() == 0x050f);
        CHECK(registers() == 78 + 1 + 6);
    }
    long result;
    __asm__ volatile("call second_way" : "=a"(result) : "a"(SYS_getppid) : "rcx", "r11", "memory");
    CHECK(result == getppid());
    CHECK(memcmp(data, "\xb8\x27\0\0\0\x0f\x05", 7) == 0);
    CHECK(writable_code() == 0);
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec + now.tv_nsec > 0);
    printf("failures %d\n", failures);
    return failures;
}
