/* A save that the orbit failed in, made again by a fork, before Redis learns of the failure: so a
 * fault of the orbit never makes Redis refuse writes. The child does what that of Redis' own
 * background save does. Redis knows it by the pid of the orbit that it believes to be its child.
 *
 * Not for a save that a replica waits for: what it is sent after the file begins at the call.
 *
 * All of it runs in Redis' main thread, and the child.
 */
#define _GNU_SOURCE
#include "rdb.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Redis 7.0's. */
static struct {
    void (*set_up_signals)(void);
    void (*close_listeners)(void);
    void (*exit)(int status);
    void (*remove_file)(pid_t writer, int from_signal);
} redis;

static pid_t child; /* 0: none */

bool again_init(void)
{
    *(void **)&redis.set_up_signals = dlsym(RTLD_DEFAULT, "setupChildSignalHandlers");
    *(void **)&redis.close_listeners = dlsym(RTLD_DEFAULT, "closeChildUnusedResourceAfterFork");
    *(void **)&redis.exit = dlsym(RTLD_DEFAULT, "exitFromChild");
    *(void **)&redis.remove_file = dlsym(RTLD_DEFAULT, "rdbRemoveTempFile");
    return redis.set_up_signals && redis.close_listeners && redis.exit && redis.remove_file;
}

bool again_begin(pid_t failed, int (*save)(const void *what), const void *what)
{
    redis.remove_file(failed, 0);
    child = fork();
    if (child == 0) {
        redis.set_up_signals();
        redis.close_listeners();
        redis.exit(save(what) == 0 ? 0 : 1);
    }
    if (child < 0)
        child = 0;
    return child != 0;
}

pid_t again_child(void)
{
    return child;
}

bool again_ended(int *status)
{
    if (waitpid(child, status, WNOHANG) != child)
        return false;
    again_forget(*status);
    return true;
}

void again_forget(int status)
{
    if (status != 0)
        redis.remove_file(child, 0);
    child = 0;
}
