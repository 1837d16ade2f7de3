/*
 * What a guest may not do: calls that would unmap, replace, alias or alter the executive's memory,
 * take its means away (dispatch, the gs base), or pass by it (io_uring). Stores by the guest's own
 * instructions are not stopped.
 */
#include "block.h"
#include "../include/orbit_hijack.h"
#include <linux/ptrace.h>

#define BLOCKS_END ((u64)(RANGE_BEGINS + RANGE_LENGTH) << RANGE_SHIFT)
#define ARCH_SET_GS 0x1001
#define ARCH_GET_GS 0x1004
#define SHM_REMAP 040000

static int names_executive(u64 address, u64 bytes) {
    u64 end = address + bytes < address ? ~0ul : address + bytes;
    return address < BLOCKS_END && end > (u64)executive_start;
}

int points_at_executive(const struct block *block) {
    u64 number = block->call[0];
    u8 pointers = call_widths[number].pointers;
    /* What these get is no buffer: they have errors of their own. */
    if (number == __NR_shmat || number == __NR_shmdt) return 0;
    for (u32 i = 0; i < 6; i++)
        if ((pointers >> i & 1) && names_executive(block->call[1 + i], 1)) return 1;
    return 0;
}

static int fail(struct block *block, i64 error) {
    block->rax = error;
    return 0;
}

int refuse(struct block *block, i64 error) {
    count_stat(STAT_REFUSED);
    return fail(block, error);
}

#define MAX_VECTORS 1024 /* of which the kernel takes no more */

/* Whether one of the buffers of an array lies there. */
static int vectors_name(u64 vectors, u64 count) {
    u64 vector[2];
    for (u64 i = 0; i < count && i < MAX_VECTORS; i++) {
        if (copy_in(vector, vectors + i * sizeof vector, sizeof vector)) return 0;
        if (vector[1] && names_executive(vector[0], vector[1])) return 1;
    }
    return 0;
}

/* Whether one of `count` messages is to be received there. */
static int messages_name(u64 messages, u64 bytes, u64 count) {
    u64 message[7]; /* struct msghdr: name, its length, buffers, their number, control, its length, flags */
    for (u64 i = 0; i < count && i < MAX_VECTORS; i++) {
        if (copy_in(message, messages + i * bytes, sizeof message)) return 0;
        if (names_executive(message[0], 1) || names_executive(message[4], 1)) return 1;
        if (vectors_name(message[2], message[3])) return 1;
    }
    return 0;
}

/* Whether one of the requests of io_submit reads to there. */
static int requests_name(u64 requests, u64 count) {
    u64 at, request[8]; /* struct iocb: the operation at 16, the buffer at 24, its length */
    for (u64 i = 0; i < count && i < MAX_VECTORS; i++) {
        if (copy_in(&at, requests + i * 8, 8) || copy_in(request, at, sizeof request)) return 0;
        u16 operation = (u16)request[2];
        if (operation == 7 /* IOCB_CMD_PREADV */ && vectors_name(request[3], request[4])) return 1;
        if (names_executive(request[3], 1)) return 1;
    }
    return 0;
}

#define UFFD_TYPE 0xaa
#define UFFD_UNREGISTER 1 /* up to here the kernel looks for a mapping, from here on for a registered one */
#define UFFD_COPY 3
#define UFFD_MOVE 5
#define UFFD_API 63

/* What a userfaultfd is asked for that names the executive's memory: the error where nothing is;
 * 0: it does not. */
static i64 fault_request(u64 command, u64 argument) {
    u32 number = command & 0xff;
    u64 range[3];
    if ((command >> 8 & 0xff) != UFFD_TYPE || number >= UFFD_API) return 0;
    int has_source = number == UFFD_COPY || number == UFFD_MOVE;
    if (copy_in(range, argument, has_source ? 24 : 16)) return 0;
    u64 bytes = range[has_source ? 2 : 1];
    int names = names_executive(range[0], bytes) || (number == UFFD_MOVE && names_executive(range[1], bytes));
    return !names ? 0 : number <= UFFD_UNREGISTER ? -EINVAL : -ENOENT;
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
    i64 error;
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
    case __NR_process_vm_writev: return vectors_name(block->call[4], block->call[5]) ? refuse(block, -EPERM) : 1;
    case __NR_readv:
    case __NR_preadv:
    case __NR_preadv2:
    case __NR_vmsplice:
    case __NR_process_vm_readv: return vectors_name(b, block->call[3]) ? refuse(block, -EFAULT) : 1;
    case __NR_recvmsg: return messages_name(b, 0, 1) ? refuse(block, -EFAULT) : 1;
    case __NR_recvmmsg: return messages_name(b, 64, block->call[3]) ? refuse(block, -EFAULT) : 1;
    case __NR_io_submit: return requests_name(block->call[3], b) ? refuse(block, -EFAULT) : 1;
    case __NR_ioctl: error = fault_request(b, block->call[3]); return error ? refuse(block, error) : 1;
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
