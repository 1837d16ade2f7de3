/* Hints for mmap all over the range of the executive: each mapping is the guest's own, to unmap. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>

#define BEGIN 0x1effffff0000ul
#define END 0x1f3000010000ul
#define STEP 0x7ffff000ul
#define BYTES (1ul << 20)

int main(void) {
    int bad = 0, fixed = 0, occupied = 0, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (unsigned long hint = BEGIN; hint < END; hint += STEP) {
        char *at = mmap((void *)hint, BYTES, PROT_NONE, flags, -1, 0);
        bad += at == MAP_FAILED || munmap(at, 4096) || mprotect(at + 4096, 4096, PROT_READ | PROT_WRITE) ||
               munmap(at, BYTES);
    }
    for (unsigned long at = 0x1f1000000000ul; at < 0x1f2000000000ul; at += STEP) {
        occupied += mmap((void *)at, BYTES, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0) ==
                        MAP_FAILED && errno == EEXIST;
        fixed += mmap((void *)at, BYTES, PROT_NONE, flags | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EPERM;
    }
    printf("bad %d occupied %d fixed %d\n", bad, occupied, fixed);
    return 0;
}
