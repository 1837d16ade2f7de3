/* How a call of libc becomes one of the log: the same in each file of such calls. */
#pragma once
#include "own.h"
#include <errno.h>
#include <string.h>

/* As libc answers: errno and -1. */
static inline long answer(struct keep_call *call)
{
    long ret = keep_logged(call);
    if (ret < 0 && ret > -4096) {
        errno = (int)-ret;
        return -1;
    }
    return ret;
}

#define ARGS_(a, b, c, d, e, f, ...) {(long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f)}
#define ARGS(...) ARGS_(__VA_ARGS__, 0, 0, 0, 0, 0, 0)
/* A call on `of` (a descriptor, or a number that tells like calls apart) without bytes. */
#define CALL(number, of, args, ...) {.nr = (number), .log_nr = (number), .fd = (int)(of), .arg = args, __VA_ARGS__}
#define PLAIN(number, of, args) return answer(&(struct keep_call)CALL(number, of, args))

/* A number for a path: like calls on other files are other calls. */
static inline int path_id(const char *path)
{
    return keep_orders && path ? (int)keep_hash(0, path, strlen(path)) : 0;
}

/* The same call, which leaves that many bytes at `to`. */
static inline long answer_with(struct keep_call *call, void *to, size_t bytes)
{
    if (to && bytes) {
        call->fill = FILL_ALL;
        call->out[call->outs++] = (struct keep_out){to, bytes};
    }
    return answer(call);
}
