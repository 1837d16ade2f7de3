/* By how many seconds each clock that a program can ask has gone during a sleep of 50 s. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#define CLOCKS 12

static void ask(double *shown) {
    static const clockid_t ids[] = {CLOCK_REALTIME,  CLOCK_MONOTONIC,        CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE,
                                    CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME, CLOCK_TAI};
    struct timeval day;
    struct timex adjusted = {0}, of_clock = {0};
    struct sysinfo about;
    struct tms used;
    for (int i = 0; i < 7; i++) {
        struct timespec at;
        clock_gettime(ids[i], &at);
        *shown++ = at.tv_sec + at.tv_nsec / 1e9;
    }
    gettimeofday(&day, NULL);
    adjtimex(&adjusted);
    clock_adjtime(CLOCK_REALTIME, &of_clock);
    sysinfo(&about);
    *shown++ = day.tv_sec;
    *shown++ = adjusted.time.tv_sec;
    *shown++ = of_clock.time.tv_sec;
    *shown++ = about.uptime;
    *shown++ = times(&used) / (double)sysconf(_SC_CLK_TCK);
}

int main(void) {
    double before[CLOCKS], after[CLOCKS];
    ask(before);
    struct timespec sleep = {50, 0};
    while (nanosleep(&sleep, &sleep)) {}
    ask(after);
    for (int i = 0; i < CLOCKS; i++) printf("%.0f\n", after[i] - before[i]);
    return 0;
}
