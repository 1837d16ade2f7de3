/* What a task meets under the numbers of main's descriptors: EBADF, never another file; what it
 * is passed is main's own. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct job {
    const char *object; /* in the area */
    int number;
};

/* errno of each way to use it; 0 for one that works. */
static long use(void *store, void *args)
{
    (void)store;
    struct job *job = args;
    char byte = 'x';
    struct pollfd poll_ = { job->number, POLLIN, 0 };
    if (job->object[0] != 42)
        return -1;
    long works = 0;
    works |= (write(job->number, &byte, 1) >= 0 || errno != EBADF) << 0;
    works |= (read(job->number, &byte, 1) >= 0 || errno != EBADF) << 1;
    works |= (pwrite(job->number, &byte, 1, 0) >= 0 || errno != EBADF) << 2;
    works |= (ftruncate(job->number, 0) == 0 || errno != EBADF) << 3;
    works |= (mmap(NULL, 4096, PROT_READ, MAP_SHARED, job->number, 0) != MAP_FAILED || errno != EBADF) << 4;
    works |= (poll(&poll_, 1, 0) != 1 || poll_.revents != POLLNVAL) << 5;
    return works;
}

/* The number of a file that the task opens. */
static long opens(void *store, void *args)
{
    (void)store, (void)args;
    return open("/dev/zero", O_RDONLY);
}

static long writes_line(void *store, void *args)
{
    (void)store;
    return write(((struct job *)args)->number, "task\n", 5);
}

static long ask(struct orbit *orbit, struct orbit_area *area, orbit_entry what, struct job *job)
{
    struct orbit_outcome end;
    GIVES(orbit_call(orbit, 1, &area, what, job, sizeof *job, &end), 0);
    return end.value;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    int before = atoi(argv[1]);
    for (int i = 0; i < before; i++) /* a listener, a database, ... */
        CHECK(open("/dev/null", O_RDWR) >= 0);
    char path[] = "/tmp/orbit-c-log-XXXXXX";
    int log = mkostemp(path, O_APPEND);
    CHECK(log >= 3 + before);
    /* Where another was open before the set-up, and far up. */
    int high = fcntl(log, F_DUPFD, 400);
    GIVES(orbit_init(), 0);
    struct orbit_area *area = orbit_area_create(1 << 20, NULL);
    char *object = orbit_calloc(area, 1, 500000);
    object[0] = 42;
    struct orbit *plain = orbit_create("plain", use, NULL);
    CHECK(plain);
    struct job job = { object, log };
    GIVES(ask(plain, area, use, &job), 0);
    job.number = high;
    GIVES(ask(plain, area, use, &job), 0);
    /* What main opens now has a number that is nothing else in the orbit, also where that has
     * opened files of its own. */
    GIVES(ask(plain, area, opens, &job) > 50, 1);
    for (int i = 0; i < 20; i++) {
        job.number = open("/dev/zero", O_RDWR);
        CHECK(job.number >= 0 && job.number < 100);
        GIVES(ask(plain, area, use, &job), 0);
    }
    /* Data are right whatever was written where. */
    for (int i = 0; i < 3; i++) {
        object[0] = 42;
        object[300000 + i] = 1;
        GIVES(ask(plain, area, use, &job), 0);
    }

    /* Passed on, opened before the set-up and after it. */
    int later = open(path, O_WRONLY | O_APPEND);
    int passed[] = { log, later, high, 1 };
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "logs", options.entry = writes_line, options.restart = ORBIT_RESTART_ALWAYS;
    options.pass_fds = passed, options.pass_fd_count = 4;
    struct orbit *logs = orbit_create_with(&options);
    CHECK(logs);
    close(later); /* the orbit has it all the same */
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++) {
            job.number = passed[i];
            GIVES(ask(logs, area, NULL, &job), 5);
        }
        struct stat now;
        CHECK(fstat(log, &now) == 0 && now.st_size == (round + 1) * 15);
        if (round == 0) { /* its next process has them too */
            struct orbit_counters counters;
            GIVES(orbit_kill(logs), 0);
            do {
                usleep(1000);
                GIVES(orbit_stats(logs, &counters), 0);
            } while (counters.restarts == 0);
            GIVES(orbit_wait_ready(logs, 30000000), 0);
        }
    }
    passed[1] = 9999;
    FAILS(orbit_create_with(&options), EINVAL);
    CHECK(strstr(orbit_last_error(), "descriptor 9999"));
    passed[1] = -1;
    FAILS(orbit_create_with(&options), EINVAL);
    /* A count that is wrong: said before a list is read that is not so long. */
    options.pass_fd_count = 5000;
    FAILS(orbit_create_with(&options), E2BIG);
    CHECK(strstr(orbit_last_error(), "1024"));
    unlink(path);
    return 0;
}
