/*
 * A program with seccomp filters of its own. It says what each of some 60 calls comes to when the
 * filter denies it, and what a strict allow-list leaves it; natively and under the executive alike.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)

static int install(struct sock_filter *code, unsigned short count) {
    struct sock_fprog program = {count, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int denies(long number, unsigned action) {
    struct sock_filter code[] = {LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1), RETURN(action),
                                 RETURN(SECCOMP_RET_ALLOW)};
    return install(code, sizeof code / sizeof *code);
}

/* What the trap's handler saw. */
static volatile long seen_call, seen_data, is_consistent;
static void on_trap(int signal, siginfo_t *info, void *pointer) {
    ucontext_t *context = pointer;
    seen_call = info->si_syscall;
    seen_data = info->si_errno;
    is_consistent = signal == SIGSYS && info->si_code == 1 && info->si_arch == AUDIT_ARCH_X86_64 &&
                    info->si_call_addr == (void *)context->uc_mcontext.gregs[REG_RIP] &&
                    context->uc_mcontext.gregs[REG_RAX] == info->si_syscall;
    context->uc_mcontext.gregs[REG_RAX] = -4000 - info->si_errno;
}

/* Made right here, so that its result is the register's, not an errno. */
__attribute__((noinline)) static long call(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static const int numbers[] = {
    SYS_read, SYS_open, SYS_close, SYS_stat, SYS_fstat, SYS_poll, SYS_lseek, SYS_mmap, SYS_mprotect, SYS_munmap,
    SYS_brk, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_ioctl, SYS_pread64, SYS_pwrite64, SYS_access,
    SYS_pipe, SYS_select, SYS_sched_yield, SYS_mremap, SYS_madvise, SYS_dup, SYS_nanosleep, SYS_alarm, SYS_setitimer,
    SYS_getpid, SYS_socket, SYS_connect, SYS_clone, SYS_fork, SYS_vfork, SYS_execve, SYS_exit, SYS_wait4, SYS_kill,
    SYS_uname, SYS_fcntl, SYS_getcwd, SYS_chdir, SYS_mkdir, SYS_unlink, SYS_readlink, SYS_umask, SYS_getuid,
    SYS_setuid, SYS_sigaltstack, SYS_personality, SYS_prctl, SYS_arch_prctl, SYS_gettid, SYS_tkill, SYS_futex,
    SYS_epoll_create, SYS_tgkill, SYS_openat, SYS_ppoll, SYS_pselect6, SYS_epoll_pwait, SYS_clone3, SYS_execveat,
    SYS_memfd_create, SYS_seccomp, SYS_getrandom, SYS_process_vm_readv, SYS_ptrace, SYS_statx, 600,
};

/* One child a call: with wrong arguments, which must not matter, since the filter comes first. */
static void one_call(int number, unsigned action) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        struct sigaction handler = {.sa_flags = SA_SIGINFO};
        handler.sa_sigaction = on_trap;
        sigaction(SIGSYS, &handler, NULL);
        long result = -1;
        if (!denies(number, action)) result = call(number, -1, -1, -1, -1, -1, -1);
        if (action == SECCOMP_RET_TRAP + 9) printf("%d: %ld call %ld data %ld consistent %ld\n", number, result, seen_call, seen_data, is_consistent);
        else printf("%d: %ld\n", number, result);
        fflush(stdout);
        call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) printf("%d: signal %d\n", number, WTERMSIG(status));
}

static void each_call(unsigned action) {
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) one_call(numbers[i], action);
}

/* Traps that nobody may catch: the default action, ignored, blocked, within the handler. */
static void traps_twice(int signal) { (void)signal, call(SYS_getpgid, 0, 0, 0, 0, 0, 0); }
static void forced(void) {
    for (int way = 0; way < 4; way++) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, SIGSYS);
            if (way == 1) signal(SIGSYS, SIG_IGN);
            if (way == 2) signal(SIGSYS, traps_twice), sigprocmask(SIG_BLOCK, &set, NULL);
            if (way == 3) signal(SIGSYS, traps_twice);
            denies(SYS_getpgid, SECCOMP_RET_TRAP);
            call(SYS_getpgid, 0, 0, 0, 0, 0, 0);
            _exit(1);
        }
        int status;
        waitpid(child, &status, 0);
        printf("way %d: %d signal %d\n", way, WIFSIGNALED(status), WTERMSIG(status));
    }
}

static volatile int handled;
static void on_signal(int signal) { handled = signal; }
static void *thread(void *nothing) { return nothing; }

/* What an allow-list leaves: everything that it names works, and all else is denied. */
static void strict_list(unsigned otherwise) {
    static const unsigned short allowed[] = {
        SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_rt_sigaction, SYS_rt_sigprocmask,
        SYS_mmap, SYS_munmap, SYS_mprotect, SYS_brk, SYS_futex, SYS_openat, SYS_close, SYS_fstat, SYS_newfstatat,
        SYS_clone3, SYS_clone, SYS_rseq, SYS_set_robust_list, SYS_madvise, SYS_tgkill, SYS_getpid, SYS_gettid,
        SYS_set_tid_address, SYS_sigaltstack, SYS_readlink, SYS_getrandom, SYS_prlimit64,
    };
    struct sock_filter code[2 * sizeof allowed / sizeof *allowed + 2];
    int count = 0;
    code[count++] = (struct sock_filter)LOAD(nr);
    for (unsigned i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        code[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        code[count++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    }
    code[count++] = (struct sock_filter)RETURN(otherwise);
    signal(SIGUSR1, on_signal);
    printf("installed %d\n", install(code, count));
    raise(SIGUSR1);
    printf("handled %d\n", handled == SIGUSR1);
    void *memory = malloc(3 << 20);
    printf("memory %d\n", memory != NULL);
    free(memory);
    char text[64] = "";
    int file = open("/proc/self/comm", O_RDONLY);
    printf("read %d\n", (int)read(file, text, sizeof text) > 0);
    close(file);
    pthread_t other;
    void *result = NULL;
    printf("thread %d", pthread_create(&other, NULL, thread, text));
    printf(" %d", pthread_join(other, &result));
    printf(" %d\n", result == text);
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    printf("stack %d\n", sigaltstack(&stack, NULL));
    printf("link %d\n", (int)readlink("/proc/self/exe", text, sizeof text) > 0);
    for (int i = 0; i < 20; i++) call(SYS_getppid, 0, 0, 0, 0, 0, 0);
    printf("denied %ld\n", call(SYS_getppid, 0, 0, 0, 0, 0, 0));
}

/* Arguments as the program has them, upper halves too; and a filter's own zero at its begin. */
static void arguments(void) {
    struct sock_filter code[] = {
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0), RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 9),
        LOAD(args[2]), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, O_RDONLY, 1, 0), RETURN(SECCOMP_RET_ERRNO | 90),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffff, 0, 1),
        RETURN(SECCOMP_RET_ALLOW),
        LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1), RETURN(SECCOMP_RET_ERRNO | 91),
        LOAD(args[0]), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4711, 0, 1), RETURN(SECCOMP_RET_ERRNO),
        RETURN(SECCOMP_RET_ALLOW),
    };
    printf("installed %d\n", install(code, sizeof code / sizeof *code));
    for (int i = 0; i < 6; i++) {
        long file = call(SYS_openat, -100, (long)"/", O_RDONLY, 0, 0, 0);
        printf("whole %d", file >= 0);
        call(SYS_close, file, 0, 0, 0, 0, 0);
        printf(" half %ld", call(SYS_openat, 0xffffff9c, (long)"/", O_RDONLY, 0, 0, 0));
        printf(" written %ld", call(SYS_openat, -100, (long)"/", O_RDWR, 0, 0, 0));
        /* Said to have succeeded, and not made. */
        printf(" munmap %ld sigaction %ld\n", call(SYS_munmap, 4711, 1, 0, 0, 0, 0),
               call(SYS_rt_sigaction, 4711, 0, 0, 0, 0, 0));
    }
}

static volatile int go;
static void *waits(void *nothing) {
    while (!go) sched_yield();
    printf("other thread %ld %ld\n", call(SYS_getppid, 0, 0, 0, 0, 0, 0), call(SYS_sigaltstack, 0, 0, 0, 0, 0, 0));
    return nothing;
}

/* A filter for all threads; for a thread alone; over fork, vfork and exec. */
static void who(const char *self) {
    pthread_t other;
    struct sock_filter code[] = {LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
                                 RETURN(SECCOMP_RET_ERRNO | 92),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sigaltstack, 0, 1),
                                 RETURN(SECCOMP_RET_ERRNO | 93), RETURN(SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    pthread_create(&other, NULL, waits, NULL);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    printf("for all %ld\n", call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, (long)&program, 0, 0, 0));
    go = 1;
    pthread_join(other, NULL);
    denies(SYS_setitimer, SECCOMP_RET_ERRNO | 94);
    fflush(stdout);
    pid_t child = vfork();
    if (!child) {
        execl(self, self, "after-exec", NULL);
        _exit(9);
    }
    int status;
    waitpid(child, &status, 0);
    printf("status %d\n", status);
}

static void after_exec(void) {
    printf("%ld %ld %ld\n", call(SYS_getppid, 0, 0, 0, 0, 0, 0), call(SYS_sigaltstack, 0, 0, 0, 0, 0, 0),
           call(SYS_setitimer, 0, 0, 0, 0, 0, 0));
    pthread_t other;
    void *result = NULL;
    printf("thread %d", pthread_create(&other, NULL, thread, &result));
    printf(" %d\n", pthread_join(other, &result));
}

/* What is refused under the executive, and the program can see that. */
static void refused(void) {
    struct sock_filter address[] = {LOAD(instruction_pointer), RETURN(SECCOMP_RET_ALLOW)};
    struct sock_filter plain[] = {RETURN(SECCOMP_RET_ALLOW)};
    static struct sock_filter many[BPF_MAXINSNS];
    for (int i = 0; i < BPF_MAXINSNS; i++) many[i] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, plain};
    printf("address %d\n", install(address, 2));
    printf("many %d\n", install(many, BPF_MAXINSNS));
    printf("listener %ld\n", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
    printf("strict %d\n", prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    printf("none %d", install(plain, 0));
    printf(" %s\n", strerror(errno));
    program.filter = (void *)8;
    printf("wrong %d", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    printf(" %s\n", strerror(errno));
}

/* How libseccomp finds out what the kernel offers. */
static void probes(void) {
    printf("strict %ld", syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL));
    printf(" %s\n", strerror(errno));
    for (int flag = 0; flag < 7; flag++) {
        printf("flag %d %ld", flag, syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flag ? 1 << (flag - 1) : 0, NULL));
        printf(" %s\n", strerror(errno));
    }
    unsigned action = SECCOMP_RET_USER_NOTIF;
    printf("action %ld\n", syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action));
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(part, "errno")) each_call(SECCOMP_RET_ERRNO | 88);
    else if (!strcmp(part, "trap")) each_call(SECCOMP_RET_TRAP + 9);
    else if (!strcmp(part, "kill")) each_call(SECCOMP_RET_KILL_PROCESS);
    else if (!strcmp(part, "forced")) forced();
    else if (!strcmp(part, "list")) strict_list(SECCOMP_RET_ERRNO | 89);
    else if (!strcmp(part, "kill-list")) strict_list(SECCOMP_RET_KILL_PROCESS);
    else if (!strcmp(part, "arguments")) arguments();
    else if (!strcmp(part, "who")) who(argv[0]);
    else if (!strcmp(part, "after-exec")) after_exec();
    else if (!strcmp(part, "refused")) refused();
    else if (!strcmp(part, "probes")) probes();
    else return 99;
    return 0;
}
