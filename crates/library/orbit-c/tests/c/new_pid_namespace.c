/* After unshare(CLONE_NEWPID) the library is not set up: the error says why, and the program can
 * make children as before. */
#define _GNU_SOURCE
#include "check.h"
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

int main(void)
{
    if (unshare(CLONE_NEWPID) != 0) {
        printf("SKIP: needs the right to make a PID namespace\n");
        return 0;
    }
    GIVES(orbit_init(), -EOPNOTSUPP);
    CHECK(strstr(orbit_last_error(), "unshare(CLONE_NEWPID)"));
    CHECK(orbit_area_create(4096, NULL) == NULL || orbit_create("none", NULL, NULL) == NULL);
    /* The first one is process 1 of the namespace: others can be made while it is there. */
    pid_t first = fork();
    CHECK(first >= 0);
    if (first == 0) {
        pause();
        _exit(0);
    }
    for (int child = 0; child < 3; child++) {
        pid_t next = fork();
        CHECK(next >= 0);
        if (next == 0)
            _exit(5);
        int status;
        CHECK(waitpid(next, &status, 0) == next && WEXITSTATUS(status) == 5);
    }
    kill(first, SIGKILL);
    CHECK(waitpid(first, NULL, 0) == first);
    return 0;
}
