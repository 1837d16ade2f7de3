/* faults CASE: works in the current folder, where files that it makes are what no rollback
 * undoes. Exit status 7 if all is well in the end. */
#include "../../include/orbit_keep.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WELL = 7, WRONG = 1, THREADS = 500 };
static volatile int *volatile nowhere = (volatile int *)8;

/* Whether this is done for the first time, whatever is rolled back. */
static int first(const char *name)
{
    int fd = open(name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (fd != -1)
        close(fd);
    return fd != -1;
}

static void checkpoint(void)
{
    if (!orbit_keep_output_barrier)
        usleep(400000); /* a static program: the keeper takes them by the clock */
    else if (!orbit_keep_output_barrier())
        _exit(WRONG);
}

static long deep(long n)
{
    volatile char room[8192];
    room[n % sizeof room] = (char)n;
    return deep(n + 1) + room[n % sizeof room];
}

static void *overflow(void *of)
{
    checkpoint();
    if (first("crashed"))
        deep(0);
    return of;
}

static volatile int go;
static volatile unsigned turns[THREADS];
static void *turn(void *of)
{
    volatile unsigned *turns_of = of;
    while (!go) {
        ++*turns_of;
        usleep(20000);
    }
    return of;
}

int main(int argc, char **argv)
{
    pthread_t thread, all[THREADS];
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "overflow-first-thread")) {
        overflow(NULL);
    } else if (!strcmp(what, "overflow-other-thread")) {
        if (pthread_create(&thread, NULL, overflow, NULL) || pthread_join(thread, NULL))
            return WRONG;
    } else if (!strcmp(what, "exec")) {
        checkpoint();
        if (first("before"))
            *nowhere = 1;
        execl("/proc/self/exe", argv[0], "executed", (char *)NULL);
        return WRONG;
    } else if (!strcmp(what, "executed")) {
        checkpoint();
        if (first("crashed"))
            *nowhere = 1;
    } else if (!strcmp(what, "plain")) {
        checkpoint();
        if (first("crashed"))
            *nowhere = 1;
    } else if (!strcmp(what, "threads")) {
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 65536);
        for (int i = 0; i < THREADS; i++)
            if (pthread_create(&all[i], &small, turn, (void *)&turns[i]))
                return WRONG;
        for (int i = 0; i < THREADS; i++)
            while (!turns[i])
                usleep(1000);
        checkpoint();
        if (first("crashed"))
            *nowhere = 1;
        unsigned before[THREADS];
        memcpy(before, (void *)turns, sizeof before);
        for (int i = 0; i < THREADS; i++)
            while (turns[i] == before[i])
                usleep(1000);
        go = 1;
        for (int i = 0; i < THREADS; i++)
            if (pthread_join(all[i], NULL))
                return WRONG;
    } else if (!strcmp(what, "endless")) {
        /* Each crash is at another instruction: they are all new to the keeper. movl %eax,8 is 7
         * bytes. */
        static const unsigned char CRASH[8] = {0x89, 0x04, 0x25, 8, 0, 0, 0, 0x90};
        int fd = open("count", O_CREAT | O_RDWR, 0644);
        if (ftruncate(fd, 4096))
            return WRONG;
        volatile unsigned *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        unsigned char *code = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int at = 0; at < 1 << 20; at += 8)
            memcpy(code + at, CRASH, 8);
        checkpoint();
        void (*crash)(void) = (void (*)(void))(void *)(code + 8 * ((*count)++ % (1 << 17)));
        crash();
    } else if (!strcmp(what, "unmaps-ours")) {
        /* A wild munmap: the memory through which the keeper copies pages and makes calls. */
        char line[512];
        unsigned long start, end;
        static volatile char pages[400 * 4096];
        checkpoint();
        for (int pass = 0; pass < 2; pass++) {
            FILE *maps = fopen("/proc/self/maps", "r");
            while (fgets(line, sizeof line, maps))
                if (strstr(line, pass ? "orbit-keep-calls" : "orbit-keep-copies") && sscanf(line, "%lx-%lx", &start, &end) == 2)
                    munmap((void *)start, end - start);
            fclose(maps);
            for (size_t at = 0; at < sizeof pages; at += 4096)
                pages[at] = (char)(pass + 1);
            checkpoint();
            for (size_t at = 0; at < sizeof pages; at += 4096)
                pages[at] += 10;
            if (first(pass ? "crashed" : "before"))
                *nowhere = 1;
            for (size_t at = 0; at < sizeof pages; at += 4096)
                if (pages[at] != pass + 11)
                    return WRONG;
        }
    } else if (!strcmp(what, "exit-after-panic")) {
        checkpoint();
        fputs("panic caught\n", stderr);
        exit(101);
    } else if (!strcmp(what, "killed")) {
        checkpoint();
        kill(getpid(), SIGKILL);
    }
    return WELL;
}
