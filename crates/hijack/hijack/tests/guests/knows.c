/* A guest that knows of the executive: one part by name; prints what came of it. */
#define _GNU_SOURCE
#include "../../include/orbit_hijack.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int decides(void) {
    struct utsname name;
    struct sysinfo info;
    printf("ppid %d\n", getppid());
    fflush(stdout); /* cut by the policy to four bytes a write: the rest is written again */
    int refused = mkdir("a#b", 0700);
    uname(&name);
    fprintf(stderr, "mkdir %d %d uname %.5s uid %d rpc %ld ", refused, errno, name.sysname, getuid(), orbit_rpc(1, 1, 2, 3));
    fprintf(stderr, "fault %d ", sysinfo(&info));
    fprintf(stderr, "after %d\n", getppid() == 4242);
    return 0;
}

static int loops(void) {
    sync();
    printf("passed, %d\n", getppid() == 4242);
    return 0;
}

static int asks(void) {
    int result = chroot("/never/there");
    printf("%d %d\n", result, errno);
    return 0;
}

/* Signals at random moments while the gate is used: every call returns its own sum. */
static volatile long handled;
static void on_alarm(int signal) {
    (void)signal;
    handled++;
    if (orbit_rpc(1, handled, 0, 0) != handled) abort();
}

static int rpcs(void) {
    struct itimerval every = {{0, 200}, {0, 200}};
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &every, NULL);
    long i = 0, wrong = 0;
    for (; handled < 1000 && i < 500000000; i++) wrong += orbit_rpc(1, i, 1, 2) != i + 3;
    printf("wrong %ld, handled enough %d\n", wrong, handled >= 1000);
    return 0;
}

static int channels(void) {
    if (fork() == 0) {
        orbit_u64 words[6];
        for (int i = 0; i < 20000; i++) {
            if (orbit_channel_receive(3, words)) _exit(1);
            if (orbit_channel_reply(3, words[0] * 2 + words[5])) _exit(2);
        }
        /* Taken, never answered. */
        orbit_channel_receive(3, words);
        _exit(0);
    }
    long wrong = 0;
    for (orbit_u64 i = 0; i < 20000; i++) {
        orbit_u64 words[6] = {i, 0, 0, 0, 0, 7};
        orbit_i64 result = 0;
        wrong += orbit_channel_call(3, words, &result) != 0 || result != (orbit_i64)(2 * i + 7);
    }
    orbit_u64 words[6] = {0};
    orbit_i64 result = 0;
    orbit_i64 dead = orbit_channel_call(3, words, &result);
    int status;
    wait(&status);
    printf("wrong %ld, dead receiver %ld, status %d\n", wrong, dead, status);
    return 0;
}

static volatile int is_over;
static double sums[4];
static void *stack_end(void) { return (char *)malloc(65536) + 65536; }

static void burns(void *argument) {
    long nth = (long)argument;
    double x = 1.0 + nth;
    for (long i = 0; !is_over; i++) {
        x = x * 1.0000001 + 1e-9;
        if (x > 1e6) x = 1.0 + nth;
        if (x < 1.0) abort();
        if (nth == 1 && i % 4096 == 0) {
            struct timespec used;
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
            is_over = used.tv_sec * 1000 + used.tv_nsec / 1000000 > 1500;
        }
    }
    sums[nth] = x;
}

static int shares(void) {
    for (long i = 1; i <= 3; i++) {
        struct orbit_context_request request = {burns, (void *)i, stack_end(), (orbit_u64)(i == 1 ? 1 : i == 2 ? 2 : 4)};
        if (orbit_context_create(&request) != i) return 1;
    }
    orbit_i64 done = orbit_context_run(2000000);
    double all = 0;
    for (int i = 1; i <= 3; i++) all += orbit_context_cycles(i);
    printf("%ld %.3f %.3f %.3f\n", done, orbit_context_cycles(1) / all, orbit_context_cycles(2) / all,
           orbit_context_cycles(3) / all);
    return 0;
}

static long order[64], count;
static void yields(void *argument) {
    for (int i = 0; i < 3; i++) {
        order[count++] = (long)argument;
        orbit_context_yield();
    }
}

static int turns(void) {
    for (long i = 1; i <= 2; i++) {
        struct orbit_context_request request = {yields, (void *)i, stack_end(), 1};
        orbit_context_create(&request);
    }
    orbit_context_run(0);
    for (long i = 0; i < count; i++) printf("%ld", order[i]);
    printf("\n");
    return 0;
}

static volatile long spins = 1;
static int waits(void) {
    alarm(120); /* if the test fails, nothing else ends it */
    printf("%p\n", (void *)&spins);
    fflush(stdout);
    while (spins) spins++;
    printf("over\n");
    return 0;
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    if (!orbit_gate()) return puts("native"), 0;
    if (!strcmp(part, "decides")) return decides();
    if (!strcmp(part, "loops")) return loops();
    if (!strcmp(part, "asks")) return asks();
    if (!strcmp(part, "rpcs")) return rpcs();
    if (!strcmp(part, "channels")) return channels();
    if (!strcmp(part, "shares")) return shares();
    if (!strcmp(part, "turns")) return turns();
    if (!strcmp(part, "waits")) return waits();
    return 9;
}
