/* A copier holds a snapshot, and none of main's descriptors: what main closes is closed for
 * everyone at once. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>

#define BYTES ((size_t)128 << 20)

static long first(void *store, void *args)
{
    (void)store;
    return **(char **)args;
}

/* Holds the orbit, so that the copiers of calls behind it live until it has ended. */
static long wait_for_file(void *store, void *args)
{
    (void)store;
    while (access(args, F_OK) != 0)
        usleep(1000);
    return 0;
}

static int listen_at(struct sockaddr_in *at)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t size = sizeof *at;
    CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    if (bind(fd, (void *)at, sizeof *at) != 0 || listen(fd, 5) != 0) {
        close(fd);
        return -1;
    }
    CHECK(getsockname(fd, (void *)at, &size) == 0);
    return fd;
}

int main(void)
{
    char go[] = "/tmp/orbit-c-go-XXXXXX", locked[] = "/tmp/orbit-c-lock-XXXXXX";
    int fd = mkstemp(go);
    CHECK(fd >= 0 && close(fd) == 0 && unlink(go) == 0);
    int early[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, early) == 0);
    GIVES(orbit_init(), 0);
    struct orbit *orbit = orbit_create("large", first, NULL);
    CHECK(orbit);
    struct orbit_area_options options = ORBIT_AREA_OPTIONS_INIT;
    options.init_size = BYTES, options.limit = BYTES + (1 << 20), options.engine = ORBIT_ENGINE_FORK;
    struct orbit_area *area = orbit_area_create_with(&options);
    char *object = orbit_alloc(area, BYTES);
    CHECK(object);
    memset(object, 1, BYTES);

    int late[2], pipe_[2], watch = epoll_create1(0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int listener = listen_at(&at), lock = mkstemp(locked);
    struct epoll_event event = { .events = EPOLLIN };
    CHECK(listener >= 0 && flock(lock, LOCK_EX) == 0 && pipe(pipe_) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, late) == 0 && epoll_ctl(watch, EPOLL_CTL_ADD, pipe_[0], &event) == 0);

    struct orbit_future *busy = orbit_call_async(orbit, 0, 0, NULL, wait_for_file, go, sizeof go);
    struct orbit_future *future = orbit_call_async(orbit, 0, 1, &area, NULL, &object, sizeof object);
    struct orbit_counters counters;
    CHECK(busy && future);
    GIVES(orbit_stats(orbit, &counters), 0);
    GIVES(counters.copiers, 1);
    object[0] = 2;

    /* The copier takes its own table as soon as it runs; on a loaded machine that may take some
     * time. */
    close(early[0]), close(late[0]), close(listener), close(lock), close(pipe_[0]);
    struct pollfd ends[2] = { { early[1], POLLIN, 0 }, { late[1], POLLIN, 0 } };
    for (int i = 0; i < 2; i++)
        CHECK(poll(&ends[i], 1, 30000) == 1 && ends[i].revents & POLLHUP);
    int again = open(locked, O_RDWR), free_ = -1, rebound = -1;
    for (int tries = 0; tries < 3000 && (free_ != 0 || rebound < 0); tries++) {
        free_ = flock(again, LOCK_EX | LOCK_NB);
        rebound = rebound < 0 ? listen_at(&at) : rebound;
        if (free_ != 0 || rebound < 0)
            usleep(10000);
    }
    CHECK(free_ == 0 && rebound >= 0);
    signal(SIGPIPE, SIG_IGN);
    CHECK(write(pipe_[1], "x", 1) == -1 && errno == EPIPE);
    CHECK(epoll_wait(watch, &event, 1, 0) == 0);

    /* All that while it held the snapshot. */
    struct orbit_outcome end;
    GIVES(orbit_future_poll(future, &end), -EINPROGRESS);
    fd = open(go, O_CREAT | O_WRONLY, 0600);
    GIVES(orbit_future_wait(busy, &end), 0);
    GIVES(orbit_future_wait(future, &end), 0);
    GIVES(end.value, 1);
    unlink(go), unlink(locked);
    return 0;
}
