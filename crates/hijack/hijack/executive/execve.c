/*
 * Exec. The guest's exec becomes an exec of the executive again, which gets the program by an open
 * descriptor, so that a deleted file or a descriptor works too. What execve would reject is
 * rejected first: afterwards there is nobody to return to.
 *
 * Arguments of the executive: "hijack", id of the session, descriptor and (behind commas) the mask
 * of ignored signals, the process' number and the descriptor of its seccomp filters, name, then the
 * guest's.
 */
#include "block.h"
#include <linux/stat.h>

#define OWN_ARGUMENTS 4
#define FEW_ARGUMENTS 1024

char executable[4096];
extern char session_id[]; /* as text */
extern u64 executive_key;

/* What execve rejects: 0 or an error. `file` is left open. */
static i64 check(i64 file) {
    struct statx about;
    i64 error = SYS5(__NR_statx, file, "", AT_EMPTY_PATH, STATX_TYPE, &about);
    if (error) return error;
    if ((about.stx_mode & 0170000) != 0100000) return -EACCES;
    error = SYS4(__NR_faccessat2, file, "", 1 /* X_OK */, AT_EMPTY_PATH | AT_EACCESS);
    if (error && error != -ENOSYS) return error;
    return check_program(file, 0);
}

/* A script's interpreter would get a name of a descriptor that is closed by then. */
static int is_hidden_script(i64 file, i64 directory, const char *path) {
    char begin[2];
    if (path[0] == '/' || (i32)directory == AT_FDCWD || !(SYS2(__NR_fcntl, directory, F_GETFD) & FD_CLOEXEC)) return 0;
    return SYS4(__NR_pread64, file, begin, 2, 0) == 2 && begin[0] == '#' && begin[1] == '!';
}

static i64 open_target(i64 directory, const char *path, u64 flags) {
    if (path[0])
        return SYS4(__NR_openat, directory, path,
                    O_RDONLY | O_CLOEXEC | (flags & AT_SYMLINK_NOFOLLOW ? O_NOFOLLOW : 0), 0);
    if (!(flags & AT_EMPTY_PATH)) return -ENOENT;
    /* A descriptor of its own: the guest's may be O_PATH, and may be closed on exec. */
    char name[40], *end = append_string(name, "/proc/self/fd/", sizeof name);
    append_number(end, directory);
    i64 file = SYS3(__NR_open, name, O_RDONLY | O_CLOEXEC, 0);
    /* Where there is no /proc: one that can be read. */
    return file == -ENOENT ? SYS3(__NR_fcntl, directory, F_DUPFD_CLOEXEC, 0) : file;
}

/* The path that the kernel would give as AT_EXECFN and to a script's interpreter. */
static void set_name(char *name, i64 directory, const char *path) {
    char *end = name;
    if (path[0] != '/' && (i32)directory != AT_FDCWD) {
        end = append_string(end, "/dev/fd/", 16);
        end = append_number(end, directory);
        if (path[0]) end = append_string(end, "/", 2);
    }
    append_string(end, path, 4096 - (end - name));
}

static i64 count_pointers(u64 array) {
    u64 chunk[64], n = 0;
    if (!array) return 0;
    for (;;) {
        u64 want = 4096 - ((array + n * 8) & 4095);
        if (want > sizeof chunk) want = sizeof chunk;
        if (want < 8) want = 8;
        if (copy_in(chunk, array + n * 8, want & ~7ul)) return -EFAULT;
        for (u64 i = 0; i < want / 8; i++, n++)
            if (!chunk[i]) return n;
        if (n > 1u << 20) return -E2BIG;
    }
}

static u64 ignored_signals(struct block *block) {
    u64 mask = 0;
    for (u32 signal = 1; signal <= SIGNAL_LIMIT; signal++)
        if (block->table->actions[signal].handler == HANDLER_IGNORE) mask |= bit(signal);
    return mask;
}

/* Not by name: there may be no /proc, or another one, and what it names would run without rules. */
static i64 exec_own(u64 *list, u64 environment) {
    if (identity(kept + 1) == executive_key)
        return SYS5(__NR_execveat, kept + 1, "", list, environment, AT_EMPTY_PATH);
    count_stat(STAT_REFUSED);
    return -EACCES;
}

static void free_extra(struct block *block) {
    if (block->extra) SYS2(__NR_munmap, block->extra, block->extra_bytes);
    block->extra = 0;
}

i64 do_execve(struct block *block, i64 directory, u64 path, u64 arguments, u64 environment, u64 flags) {
    static const char empty[] = "";
    char name[4128], number[64];
    u64 few[FEW_ARGUMENTS + OWN_ARGUMENTS + 2];
    i64 length = copy_string(block->path, path, sizeof block->path);
    if (length < 0) return length;
    /* In /proc stands the executive in place of the guest's program. */
    if (executable[0] && is_own_executable(block, path)) append_string(block->path, executable, sizeof block->path);
    i64 file = open_target(directory, block->path, flags);
    if (is_error(file)) return file;
    i64 error = check(file);
    if (!error && is_hidden_script(file, directory, block->path)) error = -ENOENT;
    i64 given = count_pointers(arguments);
    if (!error && given < 0) error = given;
    if (error) {
        SYS1(__NR_close, file);
        return error;
    }
    u64 *list = few;
    if (given > FEW_ARGUMENTS) {
        block->extra_bytes = (given + OWN_ARGUMENTS + 2) * 8;
        block->extra =
            SYS6(__NR_mmap, 0, block->extra_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        list = (u64 *)block->extra;
        if (is_error(block->extra)) {
            block->extra = 0;
            SYS1(__NR_close, file);
            return -ENOMEM;
        }
    }
    set_name(name, directory, block->path);
    char *end = append_string(append_number(number, file), ",", 2);
    end = append_string(append_number(end, ignored_signals(block)), ",", 2);
    end = append_number(end, block->process);
    i64 filters = -1;
    if (block->filters) {
        filters = save_filters(block);
        if (is_error(filters)) {
            free_extra(block);
            SYS1(__NR_close, file);
            return filters;
        }
        append_number(append_string(end, ",", 2), filters);
        SYS3(__NR_fcntl, filters, F_SETFD, 0);
    }
    list[0] = (u64) "hijack";
    list[1] = (u64)session_id;
    list[2] = (u64)number;
    list[3] = (u64)name;
    if (!given) list[OWN_ARGUMENTS] = (u64)empty;
    else if (copy_in(list + OWN_ARGUMENTS, arguments, given * 8)) list[OWN_ARGUMENTS] = 0;
    list[OWN_ARGUMENTS + (given ? given : 1)] = 0;
    count_stat(STAT_EXECS);
    SYS3(__NR_fcntl, file, F_SETFD, 0);
    /* The host's stop may come before the executive has its handler again, and would kill.
     * `start` opens SIGSYS. */
    u64 dispatch = bit(SIGSYS);
    SYS4(__NR_rt_sigprocmask, SIG_BLOCK, &dispatch, NULL, 8);
    error = exec_own(list, environment);
    SYS4(__NR_rt_sigprocmask, SIG_UNBLOCK, &dispatch, NULL, 8);
    SYS1(__NR_close, file);
    if (filters >= 0) SYS1(__NR_close, filters);
    free_extra(block);
    return error;
}
