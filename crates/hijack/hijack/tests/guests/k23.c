/*
 * What a 2025 study (K23, ACM Middleware) found that earlier interposers get wrong: one part by
 * name. Each prints "right", or what is wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                          \
    do {                                                     \
        if (!(what)) return printf("wrong: %s\n", #what), 1; \
    } while (0)

/* A rule of the test answers getppid with 4242, if the call is seen. */
static int is_seen(void) { return getppid() == 4242; }

#define ROUNDS 30
#define SITES 200
__asm__(
    ".text\n.p2align 4\nmov_sites:\n.rept 200\n.p2align 4\nmov $39, %eax\nsyscall\nret\n.endr\n"
    ".p2align 5\npad_sites:\n.rept 200\n.p2align 5\nmov %rdi, %rax\nsyscall\nret\n.byte 0x0f, 0x1f, 0x84, 0, 0, 0, 0, "
    "0\n"
    ".endr\n"
    /* Data among code: bytes of a syscall, of a long NOP and of padding. */
    ".p2align 4\ndata: .byte 0xb8, 0x27, 0, 0, 0, 0x0f, 0x05, 0x90, 0x90, 0x90, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc\n"
    "beside_data: mov %rdi, %rax\nsyscall\nret\n"
    /* The constant of a mov is a syscall and a return, with a NOP nearby that a rewriter could
     * use. */
    ".p2align 4\nhidden: mov $0x00c3050f, %eax\nret\n.p2align 4\n.byte 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0\n"
    /* Entered at the mov and at the syscall. */
    ".p2align 4\ntwo_ways: mov $39, %eax\nsecond_way: syscall\nret\n"
    ".p2align 12\nlone_page: mov $39, %eax\nsyscall\nret\n.p2align 12\n");
extern char mov_sites[], pad_sites[], hidden[], second_way[], lone_page[];
extern const unsigned char data[];
long two_ways(void), beside_data(long);
static const unsigned char expected[] = {0xb8, 0x27, 0,    0,    0,    0x0f, 0x05, 0x90,
                                         0x90, 0x90, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc};

static long call_at(const void *address, long number) {
    long result = number;
    __asm__ volatile("call *%1" : "+a"(result) : "r"(address), "D"(number) : "rcx", "r11", "memory");
    return result;
}

static int emptied_environment(const char *self) {
    char *nothing[] = {NULL};
    execve(self, (char *[]){(char *)self, "seen", NULL}, nothing);
    return 1;
}

static int own_prctl(void) {
    CHECK(is_seen());
    CHECK(prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 0, 0, 0, 0) == -1);
    char selector = 0;
    CHECK(prctl(59, 1, 0, 0, &selector) == -1);
    for (int i = 0; i < 20; i++) CHECK(is_seen());
    return 0;
}

/* A process' CPU clock is not in the vdso's page: the vdso makes the call itself, from its own
 * code. */
static int vdso(void) {
    struct timespec at;
    for (int i = 0; i < 20; i++) CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at) == 0);
    return 0;
}

static int parts_of_others(void) {
    pid_t self = getpid();
    for (int i = 0; i < 20; i++) {
        CHECK(call_at(hidden + 1, SYS_getpid) == self);
        CHECK(call_at(hidden, 0) == 0x00c3050f);
    }
    return 0;
}

static int corrupted(void) {
    pid_t self = getpid();
    for (int i = 0; i < 20; i++) {
        CHECK(beside_data(SYS_getpid) == self);
        CHECK(memcmp(data, expected, sizeof expected) == 0);
        CHECK(two_ways() == self);
        CHECK(call_at(second_way, SYS_getppid) == getppid());
    }
    return 0;
}

static sigjmp_buf jump;
static void *volatile fault;
static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    fault = info->si_addr;
    siglongjmp(jump, 1);
}

static int null_pages(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER};
    action.sa_sigaction = on_fault;
    sigaction(SIGSEGV, &action, NULL);
    for (int i = 0; i < 20; i++) getpid();
    for (volatile long at = 0; at < 4096; at += 512) {
        fault = (void *)-1;
        if (!sigsetjmp(jump, 1)) {
            volatile char *volatile pointer = (char *)at;
            (void)*pointer;
            CHECK(!"a read of the null page");
        }
        CHECK(fault == (void *)at);
        if (!sigsetjmp(jump, 1)) {
            *(volatile char *)at = 1;
            CHECK(!"a write of the null page");
        }
        if (!sigsetjmp(jump, 1)) {
            void (*volatile function)(void) = (void (*)(void))at;
            function();
            CHECK(!"a call into the null page");
        }
        CHECK(fault == (void *)at);
    }
    return 0;
}

static long wrong;
static pid_t self_pid;
static pthread_barrier_t together;
static void *runs(void *argument) {
    for (int i = 0; i < SITES; i++) {
        /* All at one site at once, when it is rewritten. */
        pthread_barrier_wait(&together);
        for (int round = 0; round < ROUNDS; round++) {
            if (call_at(mov_sites + 16 * i, 0) != self_pid) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
            if (call_at(pad_sites + 32 * i, SYS_getpid) != self_pid) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
        }
    }
    return argument;
}

static int other_threads(void) {
    pthread_t threads[4];
    self_pid = getpid();
    pthread_barrier_init(&together, NULL, 4);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, runs, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK(wrong == 0);
    return 0;
}

/* The rights of the mapping at an address, as `r-xp`. */
static void rights(const void *address, char *to) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long begin, end;
    *to = 0;
    while (fgets(line, sizeof line, maps)) {
        char found[8] = "";
        sscanf(line, "%lx-%lx %7s", &begin, &end, found);
        if ((unsigned long)address >= begin && (unsigned long)address < end) strcpy(to, found);
        /* No code of a file is writable. */
        if (!strcmp(found, "rwxp") && strstr(line, "k23")) strcpy(to, "rwx of a file");
    }
    fclose(maps);
}

static int protection(void) {
    char is[64];
    pid_t self = getpid();
    for (int i = 0; i < 20; i++) CHECK(call_at(mov_sites, 0) == self && call_at(pad_sites, SYS_getpid) == self);
    rights(mov_sites, is);
    CHECK(!strcmp(is, "r-xp"));
    rights(data, is);
    CHECK(!strcmp(is, "r-xp"));
    /* What the program itself has set stays: code that only executes, and code that it made
     * writable. */
    CHECK(mprotect(lone_page, 4096, PROT_EXEC) == 0);
    for (int i = 0; i < 20; i++) CHECK(call_at(lone_page, 0) == self);
    rights(lone_page, is);
    CHECK(!strcmp(is, "--xp"));
    CHECK(mprotect(lone_page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    for (int i = 0; i < 20; i++) CHECK(call_at(lone_page, 0) == self);
    CHECK(memcmp(lone_page, "\xb8\x27\0\0\0\x0f\x05\xc3", 8) == 0);
    lone_page[1] = 110; /* getppid */
    for (int i = 0; i < 20; i++) CHECK(call_at(lone_page, 0) == getppid());
    CHECK(mprotect(lone_page, 4096, PROT_READ | PROT_EXEC) == 0);
    for (int i = 0; i < 20; i++) CHECK(call_at(lone_page, 0) == getppid());
    rights(lone_page, is);
    CHECK(!strcmp(is, "r-xp"));
    return 0;
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    int failed = 99;
    if (!strcmp(part, "seen")) failed = !is_seen();
    if (!strcmp(part, "emptied-environment")) failed = emptied_environment(argv[0]);
    if (!strcmp(part, "own-prctl")) failed = own_prctl();
    if (!strcmp(part, "vdso")) failed = vdso();
    if (!strcmp(part, "parts-of-others")) failed = parts_of_others();
    if (!strcmp(part, "corrupted")) failed = corrupted();
    if (!strcmp(part, "null-pages")) failed = null_pages();
    if (!strcmp(part, "other-threads")) failed = other_threads();
    if (!strcmp(part, "protection")) failed = protection();
    if (!failed) puts("right");
    return failed;
}
