/* Another program in this process: what the keeper has given to this one is given to that one
 * too, so that it is kept from its start. */
#include "own.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As the keeper has named its files. */
static char library[64], memory[64];

void keep_note_names(const char *preload, const char *shared)
{
    size_t bytes = strcspn(preload, ":");
    if (bytes < sizeof library && strlen(shared) < sizeof memory) {
        memcpy(library, preload, bytes);
        strcpy(memory, shared);
    }
}

static int is_ours(const char *entry)
{
    return !strncmp(entry, "LD_PRELOAD=", 11) || !strncmp(entry, "ORBIT_KEEP=", 11)
        || !strncmp(entry, "ORBIT_KEEP_PRELOAD=", 19);
}

/* The environment with the keeper's variables in it, at `to`. */
static char *const *with_ours(char *const *from, char **to, char (*text)[4096])
{
    const char *preload = "";
    size_t n = 0;
    for (; from && *from; from++) {
        if (!is_ours(*from))
            to[n++] = *from;
        else if (!strncmp(*from, "LD_PRELOAD=", 11))
            preload = *from + 11;
    }
    snprintf(text[0], sizeof text[0], "LD_PRELOAD=%s%s%s", library, *preload ? ":" : "", preload);
    snprintf(text[1], sizeof text[1], "ORBIT_KEEP=%s", memory);
    snprintf(text[2], sizeof text[2], "ORBIT_KEEP_PRELOAD=%s", preload);
    to[n++] = text[0];
    to[n++] = text[1];
    if (*preload)
        to[n++] = text[2];
    to[n] = NULL;
    return to;
}

static size_t count(char *const *list)
{
    size_t n = 0;
    while (list && list[n])
        n++;
    return n;
}

/* The call, with the process made ready for it, and as before if it fails. */
static int replaced(long nr, long a, long b, long c, long d, long e, int environment_at, char *const *environment)
{
    /* A child of vfork's kind, or one that is not kept, executes what it likes. */
    uint32_t own = (uint32_t)keep_plain(SYS_getpid, 0, 0, 0, 0, 0, 0);
    int is_kept = keep_orders && *library && keep_keeper_lives() &&
                  (keep_orders->pid == own || (!keep_orders->pid && keep_news->pid == own));
    char *room[is_kept ? count(environment) + 4 : 1];
    char text[3][4096];
    long arg[5] = {a, b, c, d, e};
    arg[environment_at] = (long)(is_kept ? with_ours(environment, room, text) : environment);
    if (is_kept)
        __atomic_store_n(&keep_news->ready, 0, __ATOMIC_SEQ_CST);
    long ret = keep_plain(nr, arg[0], arg[1], arg[2], arg[3], arg[4], 0);
    if (is_kept)
        __atomic_store_n(&keep_news->ready, 1, __ATOMIC_SEQ_CST);
    errno = (int)-ret;
    return -1;
}

EXPORT int execve(const char *path, char *const *arguments, char *const *environment)
{
    return replaced(SYS_execve, (long)path, (long)arguments, 0, 0, 0, 2, environment);
}

EXPORT int execveat(int folder, const char *path, char *const *arguments, char *const *environment, int flags)
{
    return replaced(SYS_execveat, folder, (long)path, (long)arguments, 0, flags, 3, environment);
}

EXPORT int fexecve(int fd, char *const *arguments, char *const *environment)
{
    return execveat(fd, "", arguments, environment, AT_EMPTY_PATH);
}

EXPORT int execv(const char *path, char *const *arguments)
{
    return execve(path, arguments, environ);
}

/* A file without a format that the kernel knows is a script for sh. */
static int script(const char *path, char *const *arguments, char *const *environment)
{
    size_t n = count(arguments);
    char *list[n + 3];
    list[0] = "/bin/sh";
    list[1] = (char *)path;
    for (size_t i = 1; i < n; i++)
        list[i + 1] = arguments[i];
    list[(n ? n : 1) + 1] = NULL;
    return execve(list[0], list, environment);
}

EXPORT int execvpe(const char *file, char *const *arguments, char *const *environment)
{
    const char *paths = getenv("PATH");
    int denied = 0;
    if (!*file) {
        errno = ENOENT;
        return -1;
    }
    if (strchr(file, '/')) {
        execve(file, arguments, environment);
        return errno == ENOEXEC ? script(file, arguments, environment) : -1;
    }
    for (const char *at = paths ? paths : "/bin:/usr/bin"; at; at = strchr(at, ':') ? strchr(at, ':') + 1 : NULL) {
        char path[4096];
        int length = (int)strcspn(at, ":");
        if ((size_t)snprintf(path, sizeof path, "%.*s%s%s", length, at, length ? "/" : "", file) >= sizeof path)
            continue;
        execve(path, arguments, environment);
        if (errno == ENOEXEC)
            return script(path, arguments, environment);
        if (errno == EACCES)
            denied = 1;
        else if (errno != ENOENT && errno != ENOTDIR && errno != ESTALE && errno != ENODEV && errno != ETIMEDOUT)
            return -1;
    }
    if (denied)
        errno = EACCES;
    return -1;
}

EXPORT int execvp(const char *file, char *const *arguments)
{
    return execvpe(file, arguments, environ);
}

/* The arguments of a list, and the environment after its end if there is one. */
#define LISTED(first, has_environment, call)                                \
    va_list all;                                                            \
    size_t n = 1;                                                           \
    va_start(all, first);                                                   \
    while (n < 65536 && va_arg(all, char *))                       \
        n++;                                                                \
    va_end(all);                                                            \
    char *list[n + 1];                                                      \
    list[0] = (char *)first;                                                \
    va_start(all, first);                                                   \
    for (size_t i = 1; i <= n; i++)                                \
        list[i] = va_arg(all, char *);                                      \
    char *const *environment = has_environment ? va_arg(all, char *const *) : environ; \
    va_end(all);                                                            \
    return call

EXPORT int execl(const char *path, const char *first, ...)
{
    LISTED(first, 0, execve(path, list, environment));
}

EXPORT int execle(const char *path, const char *first, ...)
{
    LISTED(first, 1, execve(path, list, environment));
}

EXPORT int execlp(const char *file, const char *first, ...)
{
    LISTED(first, 0, execvpe(file, list, environment));
}
