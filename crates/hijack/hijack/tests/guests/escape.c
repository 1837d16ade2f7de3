/* What a guest may try against its executive: each attempt prints its name and the error it got. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXECUTIVE ((void *)0x1f0000000000)
#define SHARED ((void *)0x1f1000000000)
#define TRY(name, call)                                                            \
    do {                                                                           \
        errno = 0;                                                                 \
        long result = (long)(call);                                                \
        printf("%s %s\n", name, result == -1 ? strerrorname_np(errno) : "passed"); \
    } while (0)

int main(void) {
    char byte = 0;
    struct iovec local = {&byte, 1}, remote = {EXECUTIVE, 1};
    char params[120] = {0};
    TRY("munmap", munmap(EXECUTIVE, 4096));
    TRY("munmap-shared", munmap(SHARED, 4096));
    TRY("mprotect", mprotect(EXECUTIVE, 4096, PROT_READ | PROT_WRITE));
    TRY("mmap", mmap(EXECUTIVE, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    TRY("mremap", mremap(EXECUTIVE, 4096, 8192, MREMAP_MAYMOVE));
    TRY("madvise", madvise(EXECUTIVE, 4096, MADV_DONTNEED));
    TRY("process_vm_writev", process_vm_writev(getpid(), &local, 1, &remote, 1, 0));
    TRY("proc-mem", open("/proc/self/mem", O_RDWR));
    int folder = open("/proc/self", O_RDONLY | O_DIRECTORY);
    unsigned long how[3] = {O_RDWR, 0, 0};
    TRY("proc-mem-slashes", open("//proc//self/mem", O_RDWR));
    TRY("proc-mem-relative", openat(folder, "mem", O_WRONLY));
    TRY("proc-mem-by-fd", open("/dev/fd/../mem", O_RDWR));
    TRY("proc-mem-openat2", syscall(SYS_openat2, folder, "mem", how, sizeof how));
    TRY("proc-mem-creat", creat("/proc/self/mem", 0600));
    TRY("proc-mem-read", open("/proc/self/mem", O_RDONLY));
    TRY("ptrace", ptrace(PTRACE_TRACEME, 0, 0, 0));
    TRY("dispatch-off", prctl(59, 0, 0, 0, 0));
    TRY("set-gs", syscall(SYS_arch_prctl, 0x1001, 0));
    TRY("io_uring", syscall(SYS_io_uring_setup, 4, params));
    TRY("shmdt", syscall(SYS_shmdt, SHARED));
    long compat;
    __asm__ volatile("int $0x80" : "=a"(compat) : "a"(20) : "memory", "r8", "r9", "r10", "r11");
    printf("int80 %s\n", compat == -ENOSYS ? "ENOSYS" : "passed");
    /* What is the guest's own works. */
    void *own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TRY("own-mprotect", mprotect(own, 4096, PROT_READ));
    TRY("own-munmap", munmap(own, 4096));
    return 0;
}
