/*
 * What a guest may not do: calls that would unmap, replace, alias or alter the executive's memory,
 * take its means away (dispatch, the gs base), or pass by it (io_uring). Stores by the guest's own
 * instructions are not stopped.
 */
#include "block.h"
#include "../include/orbit_hijack.h"
#include <linux/ptrace.h>

#define BLOCKS_END 0x1f3000000000ul
#define ARCH_SET_GS 0x1001
#define ARCH_GET_GS 0x1004
#define SHM_REMAP 040000

static int names_executive(u64 address, u64 bytes) {
    u64 end = address + bytes < address ? ~0ul : address + bytes;
    if (address < (u64)executive_end && end > (u64)executive_start) return 1;
    return address < BLOCKS_END && end > SHARED_ADDRESS;
}

static int fail(struct block *block, i64 error) {
    block->rax = error;
    return 0;
}

static int refuse(struct block *block, i64 error) {
    count_stat(STAT_REFUSED);
    return fail(block, error);
}

/* process_vm_writev into this process that names the executive. */
static int writes_executive(struct block *block) {
    u64 vector[2];
    for (u64 i = 0; i < block->call[5] && i < 1024; i++) {
        if (copy_in(vector, block->call[4] + i * sizeof vector, sizeof vector)) return 0;
        if (names_executive(vector[0], vector[1])) return 1;
    }
    return 0;
}

/*
 * Whether the file, whatever its name is here (by a bind mount, in a chroot), is the memory of a
 * process that has the executive: then it shows us at our address. What cannot be read is taken
 * for memory.
 */
static int shows_executive(i64 file, const char *name) {
    char seen[16];
    i64 again = SYS3(__NR_open, name, O_RDONLY | O_CLOEXEC, 0);
    i64 got = SYS4(__NR_pread64, is_error(again) ? file : again, seen, sizeof seen, executive_start);
    if (!is_error(again)) SYS1(__NR_close, again);
    return got == -EBADF || (got == sizeof seen && !memcmp(seen, executive_start, sizeof seen));
}

int is_memory_file(i64 file) {
    char name[40], path[32], *end = append_string(name, "/proc/self/fd/", sizeof name);
    u64 about[16] = {0}; /* struct statfs, whose first word is the kind */
    u32 mode[36] = {0};  /* struct stat, whose mode is at 24 */
    SYS2(__NR_fstatfs, file, about);
    if (about[0] != PROC_SUPER_MAGIC) return 0;
    append_number(end, file);
    if (!SYS2(__NR_fstat, file, mode) && mode[6] == 0100600 && shows_executive(file, name)) return 1;
    i64 length = SYS3(__NR_readlink, name, path, sizeof path - 1);
    if (length < 4 || length == sizeof path - 1) return 0;
    path[length] = 0;
    return same_string(path + length - 4, "/mem");
}

/* Size of a System V segment; all that there may be if it is not known. */
static u64 segment_bytes(u64 id) {
    u64 about[14] = {0}; /* struct shmid64_ds: 48 bytes of rights, then the size */
    return SYS3(__NR_shmctl, id, 2 /* IPC_STAT */, about) ? 1ul << 46 : about[6];
}

/*
 * What leak checks of sanitizers do: stop threads of their own memory, read registers, let them
 * run. A thread in the executive has the guest's preserved registers at its calls.
 */
static int may_trace(struct block *block) {
    switch (block->call[1]) {
    case PTRACE_ATTACH:
    case PTRACE_DETACH:
    case PTRACE_CONT:
    case PTRACE_GETREGS:
    case PTRACE_GETREGSET: return shares_memory(block->call[2]);
    }
    return 0;
}

int may_pass(struct block *block) {
    u64 a = block->call[1], b = block->call[2];
    switch (block->call[0]) {
    case __NR_munmap:
    case __NR_mprotect:
    case __NR_pkey_mprotect:
    case __NR_madvise:
    case __NR_remap_file_pages:
    case 462: /* mseal */
        if (names_executive(a, b)) return refuse(block, -EPERM);
        if (block->call[0] != __NR_madvise) reset_sites(a, b, block->call[0] == __NR_munmap);
        return 1;
    case __NR_mmap:
        if (!(block->call[4] & MAP_ANONYMOUS) && is_kept(block->call[5])) return fail(block, -EBADF);
        if (!(block->call[4] & (MAP_FIXED | MAP_FIXED_NOREPLACE))) {
            /* A hint that is occupied: the kernel picks another address. It rounds to pages. */
            if (a && names_executive(a & ~4095ul, b + 8192 < b ? b : b + 8192)) block->call[1] = 0;
            return 1;
        }
        if (names_executive(a, b) && (block->call[4] & MAP_FIXED_NOREPLACE)) return fail(block, -EEXIST);
        if (names_executive(a, b)) return refuse(block, -EPERM);
        reset_sites(a, b, 0);
        return 1;
    case __NR_mremap:
        /* A size of 0 makes an alias of shared memory. */
        if (names_executive(a, b ? b : 1)) return refuse(block, -EPERM);
        if ((block->call[4] & MREMAP_FIXED) && names_executive(block->call[5], block->call[3]))
            return refuse(block, -EPERM);
        reset_sites(a, b, 0);
        return 1;
    case __NR_shmat:
        if (!b || !names_executive(b, segment_bytes(a))) return 1;
        if (block->call[3] & SHM_REMAP) return refuse(block, -EPERM);
        return fail(block, -EINVAL); /* as where memory is occupied */
    case __NR_close:
    case __NR_dup:
    case __NR_fcntl: return is_kept(a) ? fail(block, -EBADF) : 1;
    case __NR_dup2:
    case __NR_dup3: return is_kept(a) || is_kept(b) ? fail(block, -EBADF) : 1;
    case __NR_process_vm_writev: return writes_executive(block) ? refuse(block, -EPERM) : 1;
    case __NR_process_madvise: return refuse(block, -EPERM);
    case __NR_ptrace: return may_trace(block) ? 1 : refuse(block, -EPERM);
    case __NR_prctl:
        if (a == ORBIT_PRCTL_GATE) return fail(block, (i64)executive_start);
        return a == PR_SET_SYSCALL_USER_DISPATCH ? refuse(block, -EINVAL) : 1;
    case __NR_arch_prctl: return a == ARCH_SET_GS || a == ARCH_GET_GS ? refuse(block, -EPERM) : 1;
    case __NR_io_uring_setup: return options & OPTION_IO_URING ? 1 : refuse(block, -ENOSYS);
    }
    return 1;
}
