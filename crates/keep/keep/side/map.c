/* Files that the serving thread maps and does not write through the mapping: their bytes are
 * logged, since in a replay the descriptor may be closed or another one. */
#include "own.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* Larger mappings are made as they are: the log would be full of them. */
#define LOGGED_BYTES (1u << 20)

static long map(void *at, size_t bytes, int protection, int flags, int fd, off_t from)
{
    return keep_plain(SYS_mmap, (long)at, (long)bytes, protection, flags, fd, from);
}

/* How many of the bytes the file has. */
static size_t there(int fd, size_t bytes, off_t from)
{
    struct stat st;
    if (keep_plain(SYS_fstat, fd, (long)&st, 0, 0, 0, 0) < 0 || !S_ISREG(st.st_mode) || st.st_size <= from)
        return 0;
    size_t left = (size_t)(st.st_size - from);
    return left < bytes ? left : bytes;
}

static long logged_map(size_t bytes, int protection, int flags, int fd, off_t from)
{
    struct keep_call call = {.nr = SYS_mmap, .log_nr = SYS_mmap, .fd = fd, .fill = FILL_ALL, .outs = 1};
    long ret = -ENOMEM, room = -1;
    if (keep_both->mode != KEEP_RECORD) {
        room = map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room < 0)
            return room;
        call.out[0] = (struct keep_out){(void *)room, bytes};
    }
    int answered = keep_begin(&call, &ret);
    if (answered && ret >= 0) {
        keep_plain(SYS_mprotect, room, (long)bytes, protection, 0, 0, 0);
        return room;
    }
    if (room >= 0)
        keep_plain(SYS_munmap, room, (long)bytes, 0, 0, 0, 0);
    if (answered)
        return ret;
    ret = map(NULL, bytes, protection, flags, fd, from);
    call.out[0] = (struct keep_out){(void *)ret, ret < 0 ? 0 : there(fd, bytes, from)};
    keep_end(&call, ret);
    return ret;
}

/* Whether what the mapping holds is the file's, and stays in this process. */
static int is_of_file(int protection, int flags)
{
    if (flags & MAP_ANONYMOUS)
        return 0;
    return (flags & MAP_TYPE) == MAP_PRIVATE ? protection & PROT_READ : protection == PROT_READ;
}

EXPORT void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t from)
{
    int is_logged = keep_serves && keep_log && !keep_in_heap && fd >= 0 && !at && bytes && bytes <= LOGGED_BYTES &&
                    is_of_file(protection, flags);
    long ret = is_logged ? logged_map(bytes, protection, flags, fd, from) : map(at, bytes, protection, flags, fd, from);
    if (ret < 0 && ret > -4096) {
        errno = (int)-ret;
        return MAP_FAILED;
    }
    return (void *)ret;
}

EXPORT void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t from)
{
    return mmap64(at, bytes, protection, flags, fd, from);
}
