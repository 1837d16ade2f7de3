/*
 * Which allocations does a task need? The program is run as an orbit would have it if nothing had
 * been moved into areas: at the task's entry a forked child closes all allocated memory and calls
 * the task. Each access to closed memory is a fault; it shows the stack that allocated the memory,
 * whose memory is then opened, and the task continues.
 *
 * Owns: the allocator of the program. Memory of one stack is on pages of its own and never used
 * again. Promises: what is closed to the end was not accessed, by the task or by the kernel for
 * it: system calls are trapped and what they point to is opened and noted too.
 *
 * Speaks by a unix socket: says hello, gets the entry's address and the number of calls; after a
 * call writes the stacks and waits for a byte, so that the other side can name them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define FRAMES 16
#define STACKS (1u << 16)
#define CHUNK (64ul << 10)
#define CHUNKS (1ul << 18)
#define GRANULE 16ul
#define FOUND 4096u
#define PAGE 4096ul
/* Seconds for one call of the task. */
#define LIMIT 60

struct stack {
    uint64_t frames[FRAMES];
    /* Free room of its last chunk. */
    char *next, *end;
};
struct all {
    struct stack stacks[STACKS];
    uint32_t owner[CHUNKS];
    uint32_t sizes[CHUNKS * CHUNK / GRANULE];
};
/* What the child found: stack and instruction of each first access. */
struct found {
    uint64_t count, ended, result;
    struct {
        uint64_t stack, at;
    } needed[FOUND];
};

static struct all *all;
static char *memory;
/* Chunks that were given out. */
static size_t used;
/* In the child those before this one are closed; no chunk that it takes itself. */
static size_t closed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int busy __attribute__((tls_model("initial-exec")));
static struct found *found;
static int talk = -1;
static unsigned char *entry, first;
static uint64_t calls;
static __thread int stepping __attribute__((tls_model("initial-exec")));

static void *mapped(size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return at;
}

static uint32_t stack_of(void **frames, int depth) {
    uint64_t key[FRAMES] = { 0 }, hash = 0;
    for (int i = 0; i < depth; i++) {
        key[i] = (uintptr_t)frames[i];
        hash = (hash ^ key[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (uint32_t i = 0; i < STACKS - 1; i++) {
        struct stack *stack = &all->stacks[1 + (hash + i) % (STACKS - 1)];
        if (stack->next == NULL) memcpy(stack->frames, key, sizeof key);
        if (stack->next == NULL || memcmp(stack->frames, key, sizeof key) == 0) return stack - all->stacks;
    }
    abort();
}

/* What the C library would say of an allocation of this size. */
static size_t usable(size_t size) { return size < 24 ? 24 : ((size + 23) & ~15ul) - 8; }

static void *taken(size_t align, size_t size) {
    if (size > CHUNKS * CHUNK / 4) return NULL;
    void *frames[FRAMES + 2];
    int depth = 0, saved = errno;
    if (!busy) {
        busy = 1;
        depth = backtrace(frames, FRAMES + 2);
        busy = 0;
    }
    pthread_mutex_lock(&lock);
    if (all == NULL) {
        memory = mapped(CHUNKS * CHUNK + CHUNK);
        memory += CHUNK - (uintptr_t)memory % CHUNK;
        all = mapped(sizeof *all);
    }
    /* This function and the one that the program called. The child's have none: nobody asks. */
    uint32_t number = depth > 2 && closed == 0 ? stack_of(frames + 2, depth - 2) : 0;
    struct stack *stack = &all->stacks[number];
    size_t room = usable(size) + 8;
    char *at = (char *)(((uintptr_t)stack->next + align - 1) & -align);
    if (stack->next == NULL || at > stack->end || (size_t)(stack->end - at) < room) {
        size_t chunks = (room + align + CHUNK - 1) / CHUNK;
        if (used + chunks > CHUNKS) abort();
        for (size_t i = 0; i < chunks; i++) all->owner[used + i] = number;
        stack->next = memory + used * CHUNK;
        stack->end = stack->next + chunks * CHUNK;
        used += chunks;
        at = (char *)(((uintptr_t)stack->next + align - 1) & -align);
    }
    stack->next = at + room;
    all->sizes[(at - memory) / GRANULE] = usable(size);
    pthread_mutex_unlock(&lock);
    errno = saved;
    return at;
}

static size_t size_of(void *p) { return p == NULL ? 0 : all->sizes[((char *)p - memory) / GRANULE]; }

void *malloc(size_t size) { return taken(GRANULE, size); }
/* Memory is never used again, so it is zero. */
void *calloc(size_t n, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : taken(GRANULE, bytes);
}
void free(void *p) { (void)p; }
void *realloc(void *p, size_t size) {
    void *new = taken(GRANULE, size);
    size_t had = size_of(p);
    if (new != NULL && p != NULL) memcpy(new, p, had < size ? had : size);
    return new;
}
void *reallocarray(void *p, size_t n, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : realloc(p, bytes);
}
void *memalign(size_t align, size_t size) { return taken(align < GRANULE ? GRANULE : align, size); }
void *aligned_alloc(size_t align, size_t size) { return taken(align < GRANULE ? GRANULE : align, size); }
int posix_memalign(void **to, size_t align, size_t size) {
    *to = taken(align < GRANULE ? GRANULE : align, size);
    return *to == NULL ? ENOMEM : 0;
}
void *valloc(size_t size) { return taken(PAGE, size); }
void *pvalloc(size_t size) { return taken(PAGE, (size + PAGE - 1) & -PAGE); }
size_t malloc_usable_size(void *p) { return size_of(p); }

/* The only place whose system calls are not trapped. */
__asm__(".text\n.type withheld_call,@function\nwithheld_call:\n"
        "mov %rdi,%rax\nmov %rsi,%rdi\nmov %rdx,%rsi\nmov %rcx,%rdx\nmov %r8,%r10\nmov %r9,%r8\n"
        "mov 8(%rsp),%r9\nsyscall\nwithheld_called: ret\n");
extern long withheld_call(long number, long, long, long, long, long, long) __attribute__((visibility("hidden")));
extern const char withheld_called[] __attribute__((visibility("hidden")));

static void leave(uint64_t how, uint64_t result) {
    found->ended = how;
    found->result = result;
    withheld_call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
}

/* Notes the memory that this address is in, and opens it; 0 if it is not closed. */
static int open_at(uint64_t address, uint64_t instruction) {
    uint64_t chunk = (address - (uintptr_t)memory) / CHUNK;
    if (address < (uintptr_t)memory || chunk >= closed) return 0;
    uint32_t stack = all->owner[chunk];
    for (uint64_t i = 0; i < found->count; i++)
        if (found->needed[i].stack == stack) return 0;
    if (found->count == FOUND) leave(0, 0);
    found->needed[found->count].stack = stack;
    found->needed[found->count].at = instruction;
    found->count++;
    for (size_t i = 0; i < closed; i++)
        if (all->owner[i] == stack)
            withheld_call(SYS_mprotect, (long)(memory + i * CHUNK), CHUNK, PROT_READ | PROT_WRITE, 0, 0, 0);
    return 1;
}

static void faulted(int signal, siginfo_t *info, void *context) {
    (void)signal;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (!open_at((uintptr_t)info->si_addr, registers[REG_RIP])) leave(0, registers[REG_RIP]);
}

/* A system call of the child: opens what its arguments, and lists of buffers, point to. */
static void called(int signal, siginfo_t *info, void *context) {
    (void)signal;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    long words[6] = { r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9] };
    for (int i = 0; i < 6; i++) open_at(words[i], (uintptr_t)info->si_call_addr);
    if (info->si_syscall == SYS_writev || info->si_syscall == SYS_readv) {
        struct iovec *list = (struct iovec *)words[1];
        for (long i = 0; i < words[2]; i++) open_at((uintptr_t)list[i].iov_base, (uintptr_t)info->si_call_addr);
    }
    r[REG_RAX] = withheld_call(info->si_syscall, words[0], words[1], words[2], words[3], words[4], words[5]);
}

/* The task returns to here, in the child. */
__asm__(".text\n.type withheld_return,@function\nwithheld_return:\n"
        "and $-16,%rsp\nmov $1,%edi\nmov %rax,%rsi\ncall withheld_leave\nhlt\n");
extern const char withheld_return[] __attribute__((visibility("hidden")));
__attribute__((used, visibility("hidden"))) void withheld_leave(uint64_t how, uint64_t result) { leave(how, result); }

static void trap_calls(void) {
    uint64_t free_at = (uintptr_t)withheld_called;
#define AT(field) (uint32_t)offsetof(struct seccomp_data, field)
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, AT(nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 5, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, AT(instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)free_at, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, AT(instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(free_at >> 32), 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(1);
}

static void on(int signal, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER };
    sigaction(signal, &action, NULL);
}

/* In the child, ahead of the task, whose frame has its return address on top of its stack. */
static void prepare(greg_t *registers) {
    alarm(LIMIT);
    on(SIGSEGV, faulted);
    on(SIGBUS, faulted);
    on(SIGSYS, called);
    *(uint64_t *)registers[REG_RSP] = (uintptr_t)withheld_return;
    /* The program's own may have blocked them. */
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGSEGV);
    sigaddset(&ours, SIGSYS);
    sigprocmask(SIG_UNBLOCK, &ours, NULL);
    for (uint32_t i = 0; i < STACKS; i++) all->stacks[i].next = all->stacks[i].end;
    closed = used;
    mprotect(memory, closed * CHUNK, PROT_NONE);
    trap_calls();
}

static void code(unsigned char byte) {
    char *page = (char *)((uintptr_t)entry & -PAGE);
    mprotect(page, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    *entry = byte;
    mprotect(page, PAGE, PROT_READ | PROT_EXEC);
}

static void report(void) {
    uint64_t head[3] = { found->count, found->ended, found->result };
    send(talk, head, sizeof head, MSG_NOSIGNAL);
    for (uint64_t i = 0; i < found->count; i++) {
        send(talk, all->stacks[found->needed[i].stack].frames, sizeof all->stacks->frames, MSG_NOSIGNAL);
        send(talk, &found->needed[i].at, 8, MSG_NOSIGNAL);
    }
    char go_on;
    while (recv(talk, &go_on, 1, 0) < 0 && errno == EINTR) {}
}

/* The breakpoint at the entry, then the step over its first instruction. */
static void trapped(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    int saved = errno;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (stepping) {
        stepping = 0;
        registers[REG_EFL] &= ~0x100;
        if (calls > 0) code(0xcc);
        errno = saved;
        return;
    }
    registers[REG_RIP] = (uintptr_t)entry;
    code(first);
    memset(found, 0, sizeof *found);
    pthread_mutex_lock(&lock);
    pid_t child = fork();
    pthread_mutex_unlock(&lock);
    if (child == 0) {
        prepare(registers);
        return;
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    report();
    calls--;
    stepping = 1;
    registers[REG_EFL] |= 0x100;
    errno = saved;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ORBIT_WITHHELD");
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    if (path == NULL || strlen(path) >= sizeof to.sun_path) return;
    strcpy(to.sun_path, path);
    unsetenv("ORBIT_WITHHELD");
    unsetenv("LD_PRELOAD");
    found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    talk = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint64_t said[2] = { (uint64_t)getpid(), 0 };
    if (found == MAP_FAILED || connect(talk, (struct sockaddr *)&to, sizeof to) != 0) abort();
    if (send(talk, said, 8, MSG_NOSIGNAL) != 8 || recv(talk, said, sizeof said, MSG_WAITALL) != sizeof said) abort();
    entry = (unsigned char *)said[0];
    calls = said[1];
    first = *entry;
    on(SIGTRAP, trapped);
    code(0xcc);
}
