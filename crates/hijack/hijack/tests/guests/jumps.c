/* Waits until times of day that come only because the clock is set. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static struct timespec in_an_hour(void) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += 3600;
    return at;
}

int main(void) {
    struct timespec began, ended, at = in_an_hour();
    clock_gettime(CLOCK_MONOTONIC, &began);
    int timer = timerfd_create(CLOCK_REALTIME, 0);
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &(struct itimerspec){.it_value = at}, NULL);
    int until = clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &at, NULL) == 0;
    /* Past it now: an hour and a little later at the most. */
    uint64_t expired = 0;
    int has_expired = read(timer, &expired, sizeof expired) == sizeof expired && expired == 1;
    uint32_t word = 0;
    int futex = syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, &at, NULL, ~0) == -1;
    clock_gettime(CLOCK_MONOTONIC, &ended);
    struct timespec now = in_an_hour();
    printf("until late %d timerfd %d futex %d monotonic %d jumped %d\n", until, has_expired, futex,
           ended.tv_sec - began.tv_sec < 60, now.tv_sec - at.tv_sec >= 3600);
    return 0;
}
