/* worker FOLDER: writes numbered lines to FOLDER/lines, while two threads count and memory is
 * mapped and unmapped. If FOLDER/crash1 or FOLDER/crash2 is there, removes it and crashes; ends
 * with status 7 once FOLDER/stop is there. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RING = 8, BYTES = 65536 };
static volatile long counts[2];
static volatile int ends;

static void *count(void *of)
{
    while (!ends) {
        ++*(volatile long *)of;
        usleep(1000);
    }
    return NULL;
}

/* An address where nothing is mapped; the compiler must not know it. */
static volatile int *volatile nowhere = (volatile int *)8;

int main(int argc, char **argv)
{
    pthread_t threads[2];
    unsigned char *ring[RING] = {0};
    if (argc != 2 || chdir(argv[1]) == -1)
        return 2;
    int fd = open("lines", O_CREAT | O_TRUNC | O_WRONLY, 0644);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, count, (void *)&counts[i]);
    for (int i = 0; access("stop", F_OK) == -1; i++) {
        unsigned char **slot = &ring[i % RING];
        if (*slot) {
            for (int at = 0; at < BYTES; at++)
                if ((*slot)[at] != (unsigned char)(i - RING))
                    return 3;
            munmap(*slot, BYTES);
        }
        *slot = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(*slot, i, BYTES);
        char line[32];
        int len = sprintf(line, "%d\n", i);
        if (write(fd, line, len) != len)
            return 4;
        if (unlink("crash1") == 0)
            *nowhere = 1;
        if (unlink("crash2") == 0)
            abort();
        usleep(1000);
    }
    ends = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return counts[0] > 0 && counts[1] > 0 ? 7 : 5;
}
