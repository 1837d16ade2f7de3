/* objects CASE: works in the current folder. Makes an object, waits for a checkpoint, changes it
 * and crashes. Put back, it checks the object; status: see objects.h. A file `crashed` is the
 * one thing here that no rollback undoes. Where no keeper's library is, it waits for a file `go`
 * instead, so that a keeper can be attached meanwhile. `objects` alone lists the cases. */
#include "objects.h"
#include "../../../include/orbit_keep.h"
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct object_case *const GROUPS[] = {FILES, MEMORY, SIGNALS, PROCESS, IPC};
static volatile int *volatile nowhere = (volatile int *)8;

/* The folder it was started in: a case may change the working directory, or the root. */
static int folder;

/* Opens nothing for long: the descriptors are the case's. */
static void leave(const char *name)
{
    int fd = openat(folder, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    IS(fd != -1);
    close(fd);
}

static int is_there(const char *name) { return faccessat(folder, name, F_OK, 0) == 0; }

int main(int argc, char **argv)
{
    /* Far from the numbers that the cases use. */
    folder = fcntl(open(".", O_PATH | O_DIRECTORY | O_CLOEXEC), F_DUPFD_CLOEXEC, 90);
    close(3);
    IS(folder >= 90 && fchmod(open(".", O_RDONLY | O_CLOEXEC), 0777) == 0);
    close(3);
    for (size_t i = 0; i < sizeof GROUPS / sizeof *GROUPS; i++) {
        for (const struct object_case *c = GROUPS[i]; c->name; c++) {
            if (argc < 2) {
                puts(c->name);
                continue;
            }
            if (strcmp(c->name, argv[1]))
                continue;
            c->make();
            leave("ready");
            if (!orbit_keep_output_barrier)
                while (!is_there("go"))
                    usleep(2000);
            else if (!orbit_keep_output_barrier())
                return IS_WRONG;
            if (!is_there("crashed")) {
                c->change();
                leave("crashed");
                *nowhere = 1;
            }
            c->check();
            _exit(IS_KEPT);
        }
    }
    return argc < 2 ? 0 : IS_LACKING;
}
