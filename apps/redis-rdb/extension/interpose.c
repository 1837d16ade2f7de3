/* The system calls of Redis by which it saves in the background, as Redis calls them: through its
 * procedure linkage table. All other callers get the real ones.
 *
 *   pipe2           shows where Redis keeps the descriptors by which a child reports
 *   fork            in a background save to disk: a call of the orbit in its place
 *   waitpid         any child: the end of that call, as a child's
 *   kill            reaches the process that makes the save
 *   pthread_create  Redis' threads allocate from our arena too
 */
#define _GNU_SOURCE
#include "rdb.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define EXPORT __attribute__((visibility("default")))

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* Whether fork is called for a background save to disk: by redisFork, by rdbSaveBackground. */
static bool is_background_save(void)
{
    /* This function, fork, redisFork, rdbSaveBackground; inlining may leave some out. */
    void *frames[6];
    int depth = backtrace(frames, 6);
    for (int i = 0; i < depth; i++)
        if (is_in_background_save(frames[i]))
            return true;
    return false;
}

EXPORT pid_t fork(void)
{
    static pid_t (*next)(void);
    if (is_in_program(__builtin_return_address(0)) && is_background_save()) {
        pid_t pid = save_begin();
        if (pid > 0)
            return pid;
    }
    if (!next)
        *(void **)&next = real("fork");
    return next();
}

EXPORT pid_t waitpid(pid_t pid, int *status, int options)
{
    static pid_t (*next)(pid_t, int *, int);
    bool ours = pid == -1 && (options & WNOHANG) && save_is_pending() && is_in_program(__builtin_return_address(0));
    pid_t ended;
    int how;
    if (!next)
        *(void **)&next = real("waitpid");
    if (ours && save_ended(&ended, &how)) {
        if (status)
            *status = how;
        return ended;
    }
    ended = next(pid, status ? status : &how, options);
    if (ours && ended > 0)
        return save_known_as(ended, status ? *status : how);
    /* It has a child that has not ended: the save. */
    return ours && ended < 0 && errno == ECHILD ? 0 : ended;
}

EXPORT int kill(pid_t pid, int signal)
{
    static int (*next)(pid_t, int);
    if (!next)
        *(void **)&next = real("kill");
    return next(is_in_program(__builtin_return_address(0)) ? save_meant_by(pid) : pid, signal);
}

EXPORT int pipe2(int descriptors[2], int flags)
{
    static int (*next)(int *, int);
    if (!next)
        *(void **)&next = real("pipe2");
    if (is_in_server(descriptors))
        save_note_pipe(descriptors);
    return next(descriptors, flags);
}

struct start {
    void *(*run)(void *);
    void *argument;
};

static void *start_in_arena(void *raw)
{
    struct start start = *(struct start *)raw;
    arena_leave(false);
    free(raw);
    return start.run(start.argument);
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    struct start *start;
    int error;
    if (!next)
        *(void **)&next = real("pthread_create");
    if (!arena_is_used() || !is_in_program(__builtin_return_address(0)) || !(start = malloc(sizeof *start)))
        return next(thread, attributes, run, argument);
    *start = (struct start){run, argument};
    error = next(thread, attributes, start_in_arena, start);
    if (error)
        free(start);
    return error;
}
