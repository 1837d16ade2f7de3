/*
 * Calls that the executive makes itself, or alters: signals, threads, exec, and names of the
 * guest's own executable. Returns ENTER_*; `block->call` may be altered, `block->rax` is the result
 * of ENTER_DONE.
 */
#include "block.h"

static int answer(struct block *block, i64 result) {
    block->rax = result;
    return ENTER_DONE;
}

/* Gives the kernel a copy of the signal mask at argument `index` in which SIGSYS is open. */
static int open_sigsys(struct block *block, u32 index) {
    u64 at = block->call[index];
    if (!at || copy_in(&block->scratch[0], at, 8)) return ENTER_KERNEL;
    block->scratch[0] &= ~bit(SIGSYS);
    block->call[index] = (u64)&block->scratch[0];
    return ENTER_KERNEL;
}

static int sigprocmask(struct block *block) {
    block->sys_next = block->sys_blocked;
    if (!block->call[2] || block->call[4] != 8 || copy_in(&block->scratch[0], block->call[2], 8)) return ENTER_KERNEL;
    u32 named = block->scratch[0] >> (SIGSYS - 1) & 1;
    u64 how = block->call[1];
    if (how == SIG_SETMASK) block->sys_next = named;
    else if (named) block->sys_next = how == SIG_BLOCK;
    if (how != SIG_UNBLOCK) block->scratch[0] &= ~bit(SIGSYS);
    block->call[2] = (u64)&block->scratch[0];
    return ENTER_KERNEL;
}

/* The mask of pselect6 is behind a pointer to (pointer, size). */
static int pselect(struct block *block) {
    u64 pair[2];
    if (!block->call[6] || copy_in(pair, block->call[6], sizeof pair) || !pair[0]) return ENTER_KERNEL;
    if (copy_in(&block->scratch[0], pair[0], 8)) return ENTER_KERNEL;
    block->scratch[0] &= ~bit(SIGSYS);
    block->scratch[1] = (u64)&block->scratch[0];
    block->scratch[2] = pair[1];
    block->call[6] = (u64)&block->scratch[1];
    return ENTER_KERNEL;
}

/*
 * The kernel takes the frame from the guest's stack: it must open SIGSYS and set our signal stack.
 * Prepared at most once: a signal may make the guest begin this call anew.
 */
static int sigreturn(struct block *block) {
    struct context *context = (struct context *)block->rsp;
    struct alternate_stack stack, own = {(u64)block->signal_stack, 0, 0, STACK_BYTES};
    u64 mask;
    if (copy_in(&stack, (u64)&context->stack, sizeof stack) || copy_in(&mask, (u64)&context->mask, 8))
        return ENTER_SIGRETURN;
    if (stack.base == own.base) return ENTER_SIGRETURN;
    block->alternate = stack;
    block->alternate.flags &= SS_AUTODISARM;
    if (stack.flags & SS_DISABLE) block->alternate = (struct alternate_stack){0, 0, 0, 0};
    block->sys_blocked = mask >> (SIGSYS - 1) & 1;
    mask &= ~bit(SIGSYS);
    copy_out((u64)&context->mask, &mask, 8);
    copy_out((u64)&context->stack, &own, sizeof own);
    return ENTER_SIGRETURN;
}

int is_own_executable(struct block *block, u64 path) {
    char text[40];
    i64 length = copy_string(text, path, sizeof text);
    if (length < 10 || text[0] != '/' || text[1] != 'p' || text[2] != 'r' || text[3] != 'o' || text[4] != 'c' ||
        text[5] != '/')
        return 0;
    if (same_string(text + 6, "self/exe") || same_string(text + 6, "thread-self/exe")) return 1;
    const char *at = text + 6;
    u64 pid = 0;
    while (*at >= '0' && *at <= '9') pid = pid * 10 + (*at++ - '0');
    return pid && pid == block->pid && same_string(at, "/exe");
}

/* What the kernel says of the executive's file, and the guest must not see. */
static const char own_link[] = "/memfd:hijack (deleted)";

/*
 * A link was read into the guest's buffer. Strings of the guest are read by the kernel, which costs
 * as much as a call: so only where the answer may be the executive's name.
 */
static void link_was_read(struct block *block, u64 path, u64 to, u64 bytes) {
    u64 got = block->rax, compared = got < sizeof own_link - 1 ? got : sizeof own_link - 1;
    if (!executable[0] || memcmp((const void *)to, own_link, compared) || !is_own_executable(block, path)) return;
    u64 length = string_length(executable);
    if (length > bytes) length = bytes;
    block->rax = copy_out(to, executable, length) ? -EFAULT : (i64)length;
}

/*
 * The kernel opened a file, so that the path was there to be read just now: it is read without
 * the kernel's help. `index` is that of its path.
 */
static void file_was_opened(struct block *block, u32 index, u64 flags) {
    i64 file = block->rax;
    const char *path = (const char *)block->call[index];
    if ((flags & O_ACCMODE) && is_memory_file(file)) {
        count_stat(STAT_REFUSED);
        SYS1(__NR_close, file);
        block->rax = -EACCES;
        return;
    }
    if (path[0] != '/' || path[1] != 'p' || path[2] != 'r' || path[3] != 'o' || !executable[0]) return;
    if (!is_own_executable(block, (u64)path)) return;
    SYS1(__NR_close, file);
    u64 call[7];
    memcpy(call, block->call, sizeof call);
    call[index] = (u64)executable;
    block->rax = call_for_guest(call);
}

/* All numbers of the range but the kept ones. */
static int close_range(struct block *block) {
    u64 first = block->call[1], last = block->call[2];
    if (first > last || first >= kept + KEPT || last < kept) return ENTER_KERNEL;
    u64 call[7];
    memcpy(call, block->call, sizeof call);
    if (first < kept) {
        call[2] = kept - 1;
        block->rax = call_for_guest(call);
        if (block->rax || last < kept + KEPT) return ENTER_DONE;
        call[3] &= ~2ul; /* CLOSE_RANGE_UNSHARE: done */
    }
    /* Where nothing is left the kernel judges the flags. */
    call[1] = last < kept + KEPT ? ~0u : kept + KEPT;
    call[2] = last < kept + KEPT ? ~0u : last;
    return answer(block, call_for_guest(call));
}

/* Of entries in /proc/PID/fd, those of the kept descriptors are taken out. */
static void list_was_read(struct block *block) {
    u64 about[16] = {0}; /* struct statfs, whose first word is the kind */
    char names[KEPT][24];
    for (u32 i = 0; i < KEPT; i++) append_number(names[i], kept + i);
    do {
        u8 *list = (u8 *)block->call[2];
        u64 bytes = block->rax, taken = 0;
        for (u64 at = 0, length; at < bytes; at += length) {
            /* struct linux_dirent64: 16 bytes, the entry's length, its kind, its name */
            const u8 *entry = list + at;
            const char *name = (const char *)entry + 19;
            length = *(const u16 *)(entry + 16);
            if (!length) break;
            int is_own = entry[18] != 4 /* DT_DIR */ && (same_string(name, names[0]) || same_string(name, names[1]));
            if (is_own && !about[0]) SYS2(__NR_fstatfs, block->call[1], about);
            if (is_own && about[0] == PROC_SUPER_MAGIC) taken += length;
            else if (taken) memcpy(list + at - taken, entry, length);
        }
        block->rax = bytes - taken;
        /* None is left, which would mean the end. */
        if (!block->rax && taken) block->rax = call_for_guest(block->call);
        else return;
    } while ((i64)block->rax > 0);
}

int special(struct block *block) {
    if (!may_pass(block)) return ENTER_DONE;
    if ((options & OPTION_VIRTUAL_TIME) && virtual_time(block) == ENTER_DONE) return ENTER_DONE;
    switch (block->call[0]) {
    case __NR_rt_sigaction: return answer(block, do_sigaction(block));
    case __NR_sigaltstack: return answer(block, do_sigaltstack(block));
    case __NR_rt_sigprocmask: return sigprocmask(block);
    case __NR_rt_sigreturn: return sigreturn(block);
    case __NR_rt_sigsuspend: return open_sigsys(block, 1);
    case __NR_ppoll: return open_sigsys(block, 4);
    case __NR_epoll_pwait:
    case __NR_epoll_pwait2: return open_sigsys(block, 5);
    case __NR_pselect6: return pselect(block);
    case __NR_clone:
    case __NR_fork:
    case __NR_vfork:
    case __NR_clone3: return answer(block, clone_thread(block, block->call[0]));
    case __NR_execve: 
        return answer(block, do_execve(block, AT_FDCWD, block->call[1], block->call[2], block->call[3], 0));
    case __NR_execveat:
        return answer(block, do_execve(block, (i32)block->call[1], block->call[2], block->call[3], block->call[4],
                                       block->call[5]));
    case __NR_prctl:
    case __NR_seccomp: return set_filter(block);
    case __NR_exit: exit_thread(block, block->call[1]);
    case __NR_exit_group: close_slots(block); return ENTER_KERNEL;
    case __NR_close_range: return close_range(block);
    }
    return ENTER_KERNEL;
}

static void mask_was_set(struct block *block) {
    u64 old;
    if (block->call[3] && block->sys_blocked && !copy_in(&old, block->call[3], 8)) {
        old |= bit(SIGSYS);
        copy_out(block->call[3], &old, 8);
    }
    block->sys_blocked = block->sys_next;
}

/* Code of a file, by the loader or dlopen: its sites may be known. */
static void was_mapped(struct block *block) {
    u64 rights = PROT_READ | PROT_WRITE | PROT_EXEC;
    if ((block->call[3] & rights) != (PROT_READ | PROT_EXEC) || (block->call[4] & MAP_ANONYMOUS)) return;
    if ((block->call[4] & MAP_TYPE) != MAP_PRIVATE) return;
    u64 key = identity((i32)block->call[5]), bytes = (block->call[2] + 4095) & ~4095ul;
    if (key) know_code(block->rax, block->rax + bytes, key, block->call[6]);
}

/* The kernel has made the call: what the guest sees of it, and what it may not keep. */
void special_after(struct block *block) {
    if (options & OPTION_VIRTUAL_TIME) virtual_time_after(block);
    filter_was_set(block);
    if (is_error(block->rax)) return;
    u64 flags = 0;
    switch (block->call[0]) {
    case __NR_rt_sigprocmask: return mask_was_set(block);
    case __NR_readlink: return link_was_read(block, block->call[1], block->call[2], block->call[3]);
    case __NR_readlinkat: return link_was_read(block, block->call[2], block->call[3], block->call[4]);
    case __NR_open: return file_was_opened(block, 1, block->call[2]);
    case __NR_creat: return file_was_opened(block, 1, O_WRONLY);
    case __NR_openat: return file_was_opened(block, 2, block->call[3]);
    case __NR_mmap: return was_mapped(block);
    case __NR_getdents64: return block->rax ? list_was_read(block) : (void)0;
    case __NR_munmap: return free_sites(block->call[1], (block->call[2] + 4095) & ~4095ul);
    case __NR_openat2:
        return copy_in(&flags, block->call[3], sizeof flags) ? (void)0 : file_was_opened(block, 2, flags);
    }
}
