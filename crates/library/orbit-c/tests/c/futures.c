/* Futures: epoll, poll, timed waits, cancelling by future and by argument, and calls that stand
 * for one another. */
#include "check.h"
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static long wait_then_echo(void *store, void *args)
{
    struct { int value, milliseconds; } *wanted = args;
    struct timespec pause = {wanted->milliseconds / 1000, wanted->milliseconds % 1000 * 1000000L};
    (void)store;
    nanosleep(&pause, NULL);
    return wanted->value;
}
static long forever(void *store, void *args)
{
    (void)store, (void)args;
    struct orbit_update *begun = orbit_update_create();
    GIVES(orbit_push(begun), 0);
    GIVES(orbit_update_free(begun), 0);
    while (pause() != 0)
        continue;
    return 0;
}

static struct orbit *orbit;
static struct orbit_future *begin(int flags, int value, int milliseconds)
{
    int args[2] = {value, milliseconds};
    struct orbit_future *future = orbit_call_async(orbit, flags, 0, NULL, NULL, args, sizeof args);
    CHECK(future);
    return future;
}

int main(void)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.name = "echo";
    options.entry = wait_then_echo;
    options.restart = ORBIT_RESTART_ALWAYS;
    options.pending = ORBIT_PENDING_KEEP;
    orbit = orbit_create_with(&options);
    CHECK(orbit);
    struct orbit_outcome end;

    enum { MANY = 20 };
    struct orbit_future *futures[MANY];
    int set = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < MANY; i++) {
        futures[i] = begin(0, i, 2);
        struct epoll_event event = {EPOLLIN, {.u32 = (uint32_t)i}};
        int fd = orbit_future_fd(futures[i]);
        CHECK(fd >= 0 && fd == orbit_future_fd(futures[i]));
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    for (int seen = 0; seen < MANY;) {
        struct epoll_event events[MANY];
        int count = epoll_wait(set, events, MANY, 30000);
        CHECK(count > 0);
        for (int e = 0; e < count; e++) {
            int i = (int)events[e].data.u32;
            GIVES(orbit_future_poll(futures[i], &end), 0);
            CHECK(end.value == i);
            CHECK(epoll_ctl(set, EPOLL_CTL_DEL, orbit_future_fd(futures[i]), NULL) == 0);
            seen++;
        }
    }
    for (int i = 0; i < MANY; i++)
        GIVES(orbit_future_free(futures[i]), 0);
    close(set);

    /* Timed waits, and cancelling. */
    struct orbit_future *busy = orbit_call_async(orbit, 0, 0, NULL, forever, NULL, 0);
    CHECK(busy);
    /* That it runs is what the others wait for, and why it cannot be cancelled. */
    struct orbit_update *update;
    GIVES(pull_orbit(busy, &update), 1);
    GIVES(orbit_update_free(update), 0);
    struct orbit_future *waiting = begin(0, 1, 0), *alike = begin(0, 1, 0), *other = begin(0, 2, 0);
    GIVES(orbit_future_wait_timeout(busy, 20000, &end), -ETIMEDOUT);
    CHECK(end.kind == ORBIT_PENDING);
    GIVES(orbit_future_poll(waiting, &end), -EINPROGRESS);
    GIVES(orbit_try_pull(waiting, &update), -EINPROGRESS);
    GIVES(orbit_future_cancel(other), 0);
    GIVES(orbit_future_wait(other, &end), -ECANCELED);
    CHECK(end.kind == ORBIT_CANCELLED);
    int args[2] = {1, 0};
    GIVES(orbit_cancel_args(orbit, args, sizeof args), 2);
    GIVES(orbit_future_wait(alike, &end), -ECANCELED);

    /* Standing for one another. */
    struct orbit_future *first = begin(0, 5, 0), *same = begin(ORBIT_SKIP_SAME, 5, 0), *unlike = begin(ORBIT_SKIP_SAME, 6, 0);
    struct orbit_future *any = begin(ORBIT_SKIP_ANY, 7, 0), *instead = begin(ORBIT_REPLACE, 8, 0);
    struct orbit_counters counters;
    GIVES(orbit_stats(orbit, &counters), 0);
    CHECK(counters.pid > 0);
    GIVES(orbit_future_cancel(busy), -EBUSY);
    GIVES(orbit_kill(orbit), 0);
    GIVES(orbit_future_wait(busy, &end), -EOWNERDEAD);
    CHECK(end.kind == ORBIT_KILLED);
    GIVES(orbit_future_wait(first, &end), -ECANCELED);
    GIVES(orbit_future_wait(same, &end), -ECANCELED);
    GIVES(orbit_future_wait(unlike, &end), -ECANCELED);
    GIVES(orbit_future_wait(any, &end), -EOWNERDEAD); /* it was the first that waited: the running one */
    GIVES(orbit_future_wait(instead, &end), 0);
    CHECK(end.value == 8);

    /* Freed while it runs; destroyed while others wait. */
    GIVES(orbit_future_free(begin(0, 1, 5)), 0);
    struct orbit_future *left = begin(0, 1, 1000);
    GIVES(orbit_destroy(orbit), 0);
    CHECK(orbit_future_wait(left, &end) < 0 && end.kind != ORBIT_PENDING);
    return 0;
}
