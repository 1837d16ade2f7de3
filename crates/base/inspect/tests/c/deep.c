/* Threads inside known functions: deep THREADS [MODE [FILE]]. Prints "ready". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))
static volatile int sink;
static const char *mode = "";

KEEP void gamma_park(int n)
{
    volatile char room[3000];
    room[n & 255] = 1;
    if (!strcmp(mode, "spin")) for (;;) sink++;
    for (;;) pause();
}
KEEP int beta_middle(int n)
{
    volatile char room[500];
    room[n & 255] = 2;
    gamma_park(n + 1);
    return room[n & 255] + sink;
}
KEEP int alpha_outer(int n)
{
    sink = beta_middle(n + 1);
    return sink + 1;
}
static void *thread(void *a) { return (void *)(intptr_t)alpha_outer((int)(intptr_t)a); }

static void *brief(void *a) { usleep(200); return a; }
static void *churn(void *a)
{
    for (;;) {
        pthread_t t[4];
        for (int i = 0; i < 4; i++) if (pthread_create(&t[i], NULL, brief, a)) return NULL;
        for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    }
}
static void handler(int s) { alpha_outer(s & 1); }
KEEP int struck(int n)
{
    raise(SIGUSR1);
    return n + sink;
}
KEEP int wild_caller(void (*f)(void))
{
    f();
    return sink + 1;
}
KEEP int recursion(int n)
{
    volatile char room[200];
    room[n & 63] = 1;
    if (n == 0) for (;;) pause();
    return recursion(n - 1) + room[1];
}
/* Every word of the stack from its own frame on is made to have the form of a frame that leads to
 * itself or to rubbish. */
KEEP static void spoil(uintptr_t seed)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), *w = (uintptr_t *)here;
    for (int i = 0; i < 4000; i += 2) {
        if (!strcmp(mode, "cyclic")) { w[i] = here + 8 * (i & 62); w[i + 1] = (uintptr_t)&spoil + 4; }
        else {
            seed = seed * 6364136223846793005ul + 1442695040888963407ul;
            w[i] = seed >> (seed & 31);
            w[i + 1] = (seed >> 20) % 3 ? (uintptr_t)&gamma_park + (seed >> 40) % 64 : seed;
        }
    }
    for (;;) syscall(SYS_pause);
}
static void *spoiled(void *a)
{
    char *room = alloca(40000);
    __asm__ volatile("" : : "r"(room) : "memory");
    spoil((uintptr_t)a * 77777 + 1);
    return room;
}

#ifdef LIBRARY
KEEP int from_library(int n)
{
    sink = alpha_outer(n);
    return sink;
}
#else
int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 0;
    if (argc > 2) mode = argv[2];
    pthread_attr_t at;
    pthread_attr_init(&at);
    pthread_attr_setstacksize(&at, 128 << 10);
    void *(*f)(void *) = thread;
    if (!strcmp(mode, "churn")) f = churn;
    if (!strcmp(mode, "cyclic") || !strcmp(mode, "random")) f = spoiled;
    for (long i = 0; i < n; i++) {
        pthread_t t;
        if (pthread_create(&t, &at, f, (void *)i)) { perror("pthread_create"); return 1; }
    }
    puts("ready");
    fflush(stdout);
    if (!strcmp(mode, "handler")) {
        signal(SIGUSR1, handler);
        sink = struck(1);
    } else if (!strcmp(mode, "wild")) {
        /* Jumps to an address in no file; the handler stays there. */
        signal(SIGSEGV, handler);
        sink = wild_caller((void (*)(void))16);
    } else if (!strcmp(mode, "deep")) {
        sink = recursion(400);
    } else if (!strcmp(mode, "disk")) {
        /* The parent of a vfork waits where signals do not reach, as for a disk. */
        if (vfork() == 0) { for (;;) pause(); }
    } else if (!strcmp(mode, "load")) {
        void *(*go)(int) = NULL;
        void *lib = dlopen(argv[3], RTLD_NOW);
        if (lib) go = (void *(*)(int))dlsym(lib, "from_library");
        if (go) go(1);
        fprintf(stderr, "%s\n", dlerror());
    } else if (!strcmp(mode, "exec")) {
        usleep(300000);
        execl(argv[3], argv[3], "0", NULL);
    }
    sink = alpha_outer(1);
    return sink;
}
#endif
