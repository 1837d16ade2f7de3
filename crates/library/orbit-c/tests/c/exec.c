/* Main has no child of the library's, so a program that it becomes by exec has none to wait for
 * either; where main adopts orphans or holds much memory the template is its child, but no plain
 * wait sees it. */
#include "check.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NO_CHILD(flags) CHECK(waitpid(-1, NULL, WNOHANG | (flags)) == -1 && errno == ECHILD)

static volatile sig_atomic_t children_reported;

static void on_child(int signal)
{
    (void)signal;
    children_reported++;
}

static long seven(void *store, void *args)
{
    (void)store, (void)args;
    return 7;
}

static struct orbit *use(void)
{
    struct orbit *orbit = orbit_create("one", seven, NULL);
    struct orbit_outcome end;
    CHECK(orbit);
    GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 0, &end), 0);
    CHECK(end.value == 7);
    return orbit;
}

int main(int count, char **words)
{
    if (count > 1 && strcmp(words[1], "after") == 0) {
        NO_CHILD(__WALL);
        return 0;
    }
    signal(SIGCHLD, on_child);
    if (count > 1) {
        int large = strcmp(words[1], "large") == 0;
        if (large) {
            char *much = malloc(64 << 20);
            CHECK(much && memset(much, 1, 64 << 20));
        } else {
            CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
        }
        use();
        NO_CHILD(0);
        if (large) {
            GIVES(orbit_shutdown(), 0);
            NO_CHILD(__WALL);
        }
        CHECK(children_reported == 0);
        return 0;
    }
    int threads = entries("/proc/self/task");
    use();
    NO_CHILD(__WALL);
    GIVES(orbit_shutdown(), 0);
    /* A template made by several threads would be noticed: the child between it and main ends by
     * libc's fork. */
    CHECK(threads_are_again(threads));
    use();
    NO_CHILD(__WALL);
    CHECK(children_reported == 0);
    execl("/proc/self/exe", words[0], "after", NULL);
    perror("exec");
    return 1;
}
