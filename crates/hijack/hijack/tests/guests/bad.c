/* What guests may do wrong or at the edge: one part by name; prints what came of it, natively
 * the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXECUTIVE 0x1f0000000000ul
#define SHARED 0x1f1000000000ul

static int ended_by(void (*does)(void)) {
    pid_t child = fork();
    if (!child) {
        alarm(60);
        does();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

/* 500 sites with `mov`, and all address space around them taken before the first is called. */
__asm__(".text\n.p2align 4\nsites:\n.rept 500\n.p2align 4\nmov $39, %eax\nsyscall\nret\n.endr\n");
extern char sites[];
static int room(void) {
    unsigned long step = 1ul << 20, reach = 0x88000000, middle = (unsigned long)sites & ~(step - 1);
    for (unsigned long at = middle - reach; at < middle + reach; at += step)
        mmap((void *)at, step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    long wrong = 0, self = getpid();
    for (int round = 0; round < 10; round++)
        for (int i = 0; i < 500; i++) wrong += ((long (*)(void))(sites + 16 * i))() != self;
    printf("wrong %ld\n", wrong);
    return 0;
}

static volatile sig_atomic_t got;
static void count(int signal) { (void)signal, got++; }

static int sigsys(void) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    /* Ignored, as the program sees it: one that is sent is lost, calls work. */
    signal(SIGSYS, SIG_IGN);
    raise(SIGSYS);
    for (int i = 0; i < 10; i++) got += getppid() <= 0;
    /* Blocked: pending until it is opened. */
    signal(SIGSYS, count);
    sigprocmask(SIG_BLOCK, &one, NULL);
    for (int i = 0; i < 10; i++) got += getppid() <= 0;
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    raise(SIGSYS);
    printf("handled %d default %d\n", (int)got, ({
               void sends(void) {
                   signal(SIGSYS, SIG_DFL);
                   raise(SIGSYS);
               }
               ended_by(sends);
           }));
    return 0;
}

/* The program's own filter sends SIGSYS to its own handler. */
static volatile int trapped;
static void on_trap(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    trapped = info->si_syscall;
}
static int own_trap(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO};
    action.sa_sigaction = on_trap;
    sigaction(SIGSYS, &action, NULL);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_getpgid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    syscall(SYS_getpgid, 0);
    printf("trapped %d\n", trapped == SYS_getpgid);
    return 0;
}

/* Handlers within handlers, eight deep, each with a call of its own. */
static int depth, deepest, unlike;
static void nests(int signal) {
    (void)signal;
    pid_t before = getpid();
    if (++depth > deepest) deepest = depth;
    if (depth < 8) raise(SIGRTMIN + depth);
    if (getpid() != before) unlike++;
    depth--;
}
static int nested(void) {
    for (int i = 0; i < 8; i++) signal(SIGRTMIN + i, nests);
    for (int i = 0; i < 100; i++) raise(SIGRTMIN);
    printf("deepest %d unlike %d\n", deepest, unlike);
    return 0;
}

static long deep(long n) {
    volatile char page[4096];
    page[n % 4096] = n;
    return n < 0 ? 0 : deep(n + 1) + page[0];
}
static void overflows(void) { deep(1); }
static void jumps_before(void) { ((void (*)(void))(EXECUTIVE - 4096))(); }
static void jumps_to_data(void) { ((void (*)(void))SHARED)(); }
static void returns_nowhere(void) { __asm__ volatile("xor %esp, %esp\nret"); }

static int jumps(void) {
    printf("overflow %d before %d data %d nowhere %d\n", ended_by(overflows), ended_by(jumps_before),
           ended_by(jumps_to_data), ended_by(returns_nowhere));
    return 0;
}

/* The vsyscall page: a call works, or faults where the kernel has none; as natively. */
static sigjmp_buf back;
static void leaps(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}
static int vsyscall(void) {
    signal(SIGSEGV, leaps);
    volatile long seconds = -1;
    if (!sigsetjmp(back, 1)) seconds = ((long (*)(long *))0xffffffffff600400)(NULL);
    long now = time(NULL);
    printf("%s\n", seconds == -1 ? "none" : seconds >= now - 1 && seconds <= now ? "works" : "wrong");
    return 0;
}

/* Forks until the limit of processes (or 2,000), each child forking too; all end. */
static void forks(void) {
    struct rlimit files = {64, 64};
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < 10; i++)
        if (fork() < 0) _exit(1);
    _exit(0);
}
static int bomb(void) {
    int how = ended_by(forks);
    while (wait(NULL) > 0 || errno == EINTR) {
    }
    printf("ended %d\n", how == 0 || how == -1);
    return 0;
}

/* Rights of a setuid program. */
static int rights(void) {
    printf("%d\n", geteuid());
    return 0;
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    if (!strcmp(part, "room")) return room();
    if (!strcmp(part, "sigsys")) return sigsys();
    if (!strcmp(part, "own-trap")) return own_trap();
    if (!strcmp(part, "nested")) return nested();
    if (!strcmp(part, "jumps")) return jumps();
    if (!strcmp(part, "vsyscall")) return vsyscall();
    if (!strcmp(part, "bomb")) return bomb();
    if (!strcmp(part, "rights")) return rights();
    return 99;
}
