/* A main that closes the library's descriptors, and has files of its own under their numbers,
 * gets an error that says so or a library that works: it never hangs, is never killed by a
 * signal, and finds nothing in its files. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define MOST 1400
static int own[MOST], owns;

static long seven(void *store, void *args)
{
    (void)store;
    return args ? **(char **)args : 7;
}

static int is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

/* Closes all from 3 on, or those of the library alone (the high ones), at one stroke: no process of
 * the library's sees an end before all numbers are closed. One by one, its thread may be about to
 * close a number that it has just found to be its own, and no call closes a number only while it
 * names a certain file: a limit that docs/limits.md names. */
static int close_them(int from, unsigned char *closed)
{
    int count = 0;
    for (int fd = from; fd < MOST; fd++)
        count += closed[fd] = is_open(fd);
    CHECK(syscall(SYS_close_range, from, MOST - 1, 0) == 0);
    return count;
}

/* Files of the program's own under each number that was closed, of one kind. */
static void occupy(const char *kind, const unsigned char *closed)
{
    for (int fd = 3; fd < MOST; fd++) {
        if (!closed[fd] || is_open(fd))
            continue;
        int ends[2] = { -1, -1 };
        if (!strcmp(kind, "events"))
            ends[0] = eventfd(0, EFD_NONBLOCK);
        else if (!strcmp(kind, "sockets"))
            CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends) == 0);
        else if (!strcmp(kind, "pipes")) {
            CHECK(pipe2(ends, O_NONBLOCK) == 0);
            int end = ends[1];
            ends[1] = ends[0], ends[0] = end; /* the writing end takes the library's number */
            close(ends[1]), ends[1] = -1;     /* and nobody reads: a write there is SIGPIPE */
        } else
            return;
        if (ends[0] != fd) {
            CHECK(dup2(ends[0], fd) == fd);
            close(ends[0]);
        }
        own[owns++] = fd;
        if (ends[1] >= 0)
            own[owns++] = ends[1];
    }
}

static void own_are_untouched(const char *kind)
{
    for (int i = 0; i < owns; i++) {
        char bytes[16];
        CHECK(is_open(own[i]));
        if (strcmp(kind, "pipes"))
            CHECK(read(own[i], bytes, sizeof bytes) == -1 && errno == EAGAIN);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    const char *when = argv[1], *kind = argv[2];
    int from = strcmp(argv[3], "all") ? 600 : 3;
    static unsigned char closed[MOST];
    signal(SIGPIPE, SIG_DFL);
    alarm(120);
    struct orbit_outcome end;
    struct orbit_future *future = NULL;
    struct orbit_area *area = NULL;
    struct orbit *old = NULL;
    char *object = NULL;
    GIVES(orbit_init(), 0);
    if (strcmp(when, "after-init")) {
        area = orbit_area_create(8 << 20, NULL);
        CHECK(area && (object = orbit_calloc(area, 1, 4 << 20)));
        object[0] = 7;
        old = orbit_create("old", seven, NULL);
        CHECK(old);
        GIVES(orbit_call(old, 1, &area, NULL, &object, sizeof object, &end), 0);
        GIVES(end.value, 7);
        if (!strcmp(when, "beside-a-future")) {
            future = orbit_call_async(old, 0, 1, &area, NULL, &object, sizeof object);
            CHECK(future && orbit_future_fd(future) >= 0);
        }
    }
    CHECK(close_them(from, closed) > 3);
    occupy(kind, closed);

    if (old) {
        /* The orbit that was there: its calls end, at once or once the supervisor has seen it. */
        int result = 0;
        for (int i = 0; i < 200 && result != -ENODEV; i++) {
            object[i] = 7;
            result = orbit_call(old, 1, &area, NULL, &object, sizeof object, &end);
            CHECK(result == 0 ? end.value == 7
                              : result == -ENODEV || result == -EHOSTDOWN || result == -EOWNERDEAD || result == -ECANCELED);
            usleep(5000);
        }
        if (result == -ENODEV)
            CHECK(strstr(orbit_last_error(), "closed by the program"));
    }
    if (future) {
        int result = orbit_future_wait_timeout(future, 30000000, &end);
        CHECK(result == 0 || result == -EOWNERDEAD || result == -ECANCELED);
        GIVES(orbit_future_free(future), 0);
    }

    /* A new orbit, and an area whose pages are tracked: as if nothing had been. */
    struct orbit *fresh = orbit_create("fresh", seven, NULL);
    CHECK(fresh);
    if (!area) {
        area = orbit_area_create(8 << 20, NULL);
        CHECK(area && (object = orbit_calloc(area, 1, 4 << 20)));
    }
    for (int i = 1; i < 20; i++) {
        object[0] = (char)i, object[i * 4096] = (char)i;
        GIVES(orbit_call(fresh, 1, &area, NULL, &object, sizeof object, &end), 0);
        GIVES(end.value, i);
    }
    GIVES(orbit_kill(fresh), 0);
    struct orbit_counters counters;
    do {
        usleep(1000);
        GIVES(orbit_stats(fresh, &counters), 0);
    } while (counters.restarts == 0);
    GIVES(orbit_wait_ready(fresh, 30000000), 0);
    object[0] = 99;
    GIVES(orbit_call(fresh, 1, &area, NULL, &object, sizeof object, &end), 0);
    GIVES(end.value, 99);
    own_are_untouched(kind);
    GIVES(orbit_shutdown(), 0);
    own_are_untouched(kind);
    return 0;
}
