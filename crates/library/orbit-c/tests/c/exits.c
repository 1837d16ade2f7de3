/* A task that calls exit does to main what a crash does: nothing. Functions that main registered
 * do not run, main's buffered output is written once and by main, and main's input stays where it
 * is. What the task itself registered and printed counts. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/mman.h>

static char kept[] = "/tmp/orbit-exits-XXXXXX";
static FILE *passed;

static void of_main(void)
{
    unlink(kept);
}

static void of_task(void)
{
    printf("registered\n");
}

static long prints(void *store, void *args)
{
    (void)store, (void)args;
    printf("printed\n");
    fprintf(passed, "passed\n");
    return fflush(stdout) + fflush(passed);
}

static long leaves(void *store, void *args)
{
    (void)store, (void)args;
    atexit(of_task);
    printf("last\n");
    exit(3);
}

static void holds(int file, const char *wanted)
{
    char text[100] = "";
    CHECK(pread(file, text, sizeof text - 1, 0) >= 0);
    if (strcmp(text, wanted) != 0)
        fprintf(stderr, "holds: %s\n", text);
    CHECK(strcmp(text, wanted) == 0);
}

int main(void)
{
    char line[8];
    int input = memfd_create("input", 0), output = memfd_create("output", 0), log = memfd_create("log", 0);
    CHECK(input >= 0 && output >= 0 && log >= 0 && close(mkstemp(kept)) == 0);
    atexit(of_main);
    for (int i = 0; i < 3000; i++)
        CHECK(write(input, "a line\n", 7) == 7);
    CHECK(lseek(input, 0, SEEK_SET) == 0 && dup2(input, 0) == 0 && dup2(output, 1) == 1);
    CHECK((passed = fdopen(log, "w")));
    CHECK(fgets(line, sizeof line, stdin));
    off_t at = lseek(input, 0, SEEK_CUR);
    printf("main\n");
    fprintf(passed, "main\n");

    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "exits";
    options.entry = prints;
    options.pass_fds = &log;
    options.pass_fd_count = 1;
    struct orbit *orbit = orbit_create_with(&options);
    CHECK(orbit);
    struct orbit_outcome end;
    GIVES(orbit_call(orbit, 0, NULL, NULL, NULL, 0, &end), 0);
    holds(output, "printed\n");
    holds(log, "passed\n");
    GIVES(orbit_call(orbit, 0, NULL, leaves, NULL, 0, &end), -EOWNERDEAD);
    CHECK(end.kind == ORBIT_EXITED && end.status == 3);
    holds(output, "printed\nlast\nregistered\n");
    holds(log, "passed\n");
    CHECK(access(kept, F_OK) == 0);
    CHECK(lseek(input, 0, SEEK_CUR) == at);

    int lines = 1;
    while (fgets(line, sizeof line, stdin))
        lines++;
    GIVES(lines, 3000);
    fflush(stdout);
    fflush(passed);
    holds(output, "printed\nlast\nregistered\nmain\n");
    holds(log, "passed\nmain\n");
    return 0;
}
