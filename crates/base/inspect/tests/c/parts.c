// Threads in calls that end after a part when a thread is stopped: each moves much, slowly. Prints
// "ready", continues until its input ends, and prints a line a thread: its name, and how many of
// its calls did not move all.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))
enum { MANY = 1 << 20, RANDOM = 48 << 20, READS = 2 };

static const char *const names[] = {"pipe", "socket", "all", "urandom", "getrandom"};
enum { COUNT = sizeof names / sizeof *names };
static int short_of[COUNT];
static volatile int enough;

static void until_enough(void) {
    while (!enough) usleep(10000);
}

// The other side: nothing until it is enough, then all.
static void *drains(void *arg) {
    static char gone[MANY];
    until_enough();
    for (long left = MANY, n; left > 0; left -= n)
        if ((n = read((int)(long)arg, gone, (size_t)left)) <= 0) abort();
    return NULL;
}

static void *feeds(void *arg) {
    char bytes[100] = {0};
    for (int i = 0; i < 10; i++) {
        if (i == 5) until_enough();
        usleep(20000);
        if (send((int)(long)arg, bytes, sizeof bytes, 0) != sizeof bytes) abort();
    }
    return NULL;
}

static void beside(void *(*run)(void *), int fd) {
    pthread_t t;
    if (pthread_create(&t, NULL, run, (void *)(long)fd)) abort();
}

KEEP int writes_to_a_pipe(void) {
    int ends[2];
    if (pipe(ends)) abort();
    beside(drains, ends[0]);
    return write(ends[1], calloc(1, MANY), MANY) != MANY;
}

KEEP int writes_to_a_socket(void) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) abort();
    beside(drains, ends[0]);
    return send(ends[1], calloc(1, MANY), MANY, 0) != MANY;
}

KEEP int receives_all(void) {
    char bytes[1000];
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) abort();
    beside(feeds, ends[1]);
    return recv(ends[0], bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes;
}

KEEP int reads_random_bytes(void) {
    int fd = open("/dev/urandom", O_RDONLY), n = 0;
    char *bytes = malloc(RANDOM);
    for (int i = 0; i < READS || !enough; i++) n += read(fd, bytes, RANDOM) != RANDOM;
    return n;
}

KEEP int gets_random_bytes(void) {
    int n = 0;
    char *bytes = malloc(RANDOM);
    // libc's function makes no call from glibc 2.41 on: the vdso answers.
    for (int i = 0; i < READS || !enough; i++) n += syscall(SYS_getrandom, bytes, RANDOM, 0) != RANDOM;
    return n;
}

static int (*const calls[])(void) = {
    writes_to_a_pipe, writes_to_a_socket, receives_all, reads_random_bytes, gets_random_bytes,
};

static void *run(void *arg) {
    long i = (long)arg;
    pthread_setname_np(pthread_self(), names[i]);
    short_of[i] = calls[i]();
    return NULL;
}

int main(void) {
    pthread_t threads[COUNT];
    for (long i = 0; i < COUNT; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)i)) return 3;
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {}
    enough = 1;
    for (int i = 0; i < COUNT; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < COUNT; i++) printf("%s: %d short\n", names[i], short_of[i]);
    return 0;
}
