/* pages FOLDER: writes the number of the round to both ends of many pages, of some in each
 * round, of others in every eighth, and compares what each held before. If FOLDER/crash is
 * there, removes it and crashes in the middle of a round; ends with status 7 once FOLDER/stop is
 * there, with 3 if a page is wrong, with 4 if memory that must not be repeated was. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 6144, WORDS = 512, SELDOM = 8 };

/* MAP_DROPPABLE, from Linux 6.11: memory that the kernel does not track, as it may drop what it
 * holds. glibc 2.41 has random numbers in such memory. */
enum { DROPPABLE = 8 };

/* An address where nothing is mapped; the compiler must not know it. */
static volatile int *volatile nowhere = (volatile int *)8;

int main(int argc, char **argv)
{
    if (argc != 2 || chdir(argv[1]) == -1)
        return 2;
    volatile long *memory = mmap(NULL, PAGES * 4096l, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    volatile long *droppable = mmap(NULL, 4096, PROT_READ | PROT_WRITE, DROPPABLE | MAP_ANONYMOUS, -1, 0);
    /* Zero in a child of fork. */
    volatile long *secret = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise((void *)secret, 4096, MADV_WIPEONFORK);
    long crashed = 0;
    for (long round = 1; access("stop", F_OK) == -1; round++) {
        if (droppable != MAP_FAILED) {
            if (round > 1 && *secret == 0 && *droppable != 0)
                return 4;
            *droppable = round;
        }
        crashed += round > 1 && *secret == 0;
        *secret = round;
        for (long nth = 0; nth < PAGES; nth++) {
            /* Scattered: 31 has no divisor in common with their number. */
            long page = nth * 31 % PAGES;
            volatile long *first = memory + page * WORDS, *last = first + WORDS - 1;
            int is_seldom = page % 3 == 0;
            if (is_seldom && round % SELDOM)
                continue;
            long before = is_seldom ? round - SELDOM : round - 1;
            if (*first != before || *last != before) {
                fprintf(stderr, "page %ld holds %ld and %ld in round %ld\n", page, *first, *last, round);
                return 3;
            }
            *first = round;
            if (nth == PAGES / 2 && unlink("crash") == 0)
                *nowhere = 1;
            *last = round;
        }
        usleep(2000);
    }
    return crashed || *secret == 0 ? 7 : 4;
}
