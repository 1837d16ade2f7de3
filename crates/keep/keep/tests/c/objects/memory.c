/* Memory, and what a thread has in its registers. */
#include "objects.h"
#include <fcntl.h>
#include <fenv.h>
#include <immintrin.h>
#include <pthread.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, LEN = 16 * PAGE, RW = PROT_READ | PROT_WRITE };
static char *at, *second;
static char data[3 * PAGE] = {1};
static __thread int mine = 5;

static char *map(size_t len, int protection) { return mmap(NULL, len, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static int is_mapped(void *address)
{
    unsigned char there;
    return mincore(address, PAGE, &there) == 0;
}

static void data_make(void) { data[PAGE] = 7; }
static void data_change(void) { memset(data, 9, sizeof data); }
static void data_check(void) { IS(data[0] == 1 && data[PAGE] == 7 && data[2 * PAGE] == 0); }

static void heap_make(void)
{
    at = malloc(LEN);
    memset(at, 3, LEN);
}
static void heap_change(void)
{
    free(at);
    second = malloc(8 * LEN);
    memset(second, 4, 8 * LEN);
}
static void heap_check(void)
{
    for (int i = 0; i < LEN; i++)
        IS(at[i] == 3);
    free(at);
}

static void brk_make(void) { at = sbrk(0); }
static void brk_change(void)
{
    IS(sbrk(LEN) != (void *)-1);
    memset(at, 1, LEN);
}
static void brk_check(void) { IS(sbrk(0) == at); }
static void brk_less_make(void)
{
    second = sbrk(LEN);
    memset(second, 6, LEN);
    at = sbrk(0);
}
static void brk_less_change(void) { IS(sbrk(-LEN) != (void *)-1); }
static void brk_less_check(void) { IS(sbrk(0) == at && second[0] == 6 && second[LEN - 1] == 6); }

static void made_make(void) { at = NULL; }
static void made_change(void)
{
    at = map(LEN, RW);
    int fd = open("address", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    IS(write(fd, &at, sizeof at) == sizeof at);
    close(fd);
}
static void made_check(void)
{
    int fd = open("address", O_RDONLY);
    IS(read(fd, &second, sizeof second) == sizeof second && second);
    IS(at == NULL && !is_mapped(second));
}

static void mapped_make(void)
{
    at = map(LEN, RW);
    memset(at, 8, LEN);
}
static void mapped_change(void) { IS(munmap(at, LEN) == 0); }
static void mapped_check(void) { IS(at[0] == 8 && at[LEN - 1] == 8); }
static void middle_change(void) { IS(munmap(at + 4 * PAGE, PAGE) == 0); }
static void protect_change(void) { IS(mprotect(at + PAGE, PAGE, PROT_READ) == 0); }
static void protect_check(void)
{
    at[PAGE] = 1;
    IS(at[PAGE + 1] == 8);
}
static void none_make(void)
{
    mapped_make();
    IS(mprotect(at, LEN, PROT_NONE) == 0);
}
static void none_change(void)
{
    IS(mprotect(at, LEN, RW) == 0);
    memset(at, 1, LEN);
}
static void none_check(void) { IS(write(-1, at, 1) == -1 && mprotect(at, LEN, RW) == 0 && at[5] == 8); }
static void grown_change(void)
{
    IS((second = mremap(at, LEN, 4 * LEN, MREMAP_MAYMOVE)) != MAP_FAILED);
    memset(second, 1, 4 * LEN);
}
static void shrunk_change(void) { IS(mremap(at, LEN, PAGE, 0) == at); }
static void dontneed_change(void) { IS(madvise(at, LEN, MADV_DONTNEED) == 0 && at[0] == 0); }
static void replaced_change(void) { IS(mmap(at, LEN, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at); }

static void file_make(int flags)
{
    int fd = open("file", O_RDWR | O_CREAT, 0644);
    for (int i = 0; i < LEN / PAGE; i++) {
        memset(data, 'a' + i, PAGE);
        IS(write(fd, data, PAGE) == PAGE);
    }
    IS((at = mmap(NULL, LEN, RW, flags, fd, 0)) != MAP_FAILED);
    close(fd);
}
static void private_make(void)
{
    file_make(MAP_PRIVATE);
    at[0] = 'X';
}
static void private_change(void)
{
    at[0] = 'Y';
    at[PAGE] = 'Y';
}
static void private_check(void) { IS(at[0] == 'X' && at[1] == 'a' && at[PAGE] == 'b' && at[5 * PAGE] == 'f'); }
static void shared_make(void) { file_make(MAP_SHARED); }
static void shared_change(void) { at[0] = 'Y'; }
static void shared_check(void) { IS(at[0] == 'a'); }
static void shared_anonymous_make(void)
{
    IS((at = mmap(NULL, LEN, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
    at[0] = 'a';
}
static void shared_memfd_make(void)
{
    int fd = memfd_create("shared", 0);
    IS(ftruncate(fd, LEN) == 0 && (at = mmap(NULL, LEN, RW, MAP_SHARED, fd, 0)) != MAP_FAILED);
    at[0] = 'a';
}
static void shared_unmapped_change(void) { IS(munmap(at, LEN) == 0); }

/* mov $N,%eax; ret */
static const unsigned char CODE[] = {0xb8, 1, 0, 0, 0, 0xc3};
static int run(void) { return ((int (*)(void))(void *)at)(); }
static void code_make(void)
{
    at = map(PAGE, RW | PROT_EXEC);
    memcpy(at, CODE, sizeof CODE);
    IS(run() == 1);
}
static void code_change(void)
{
    at[1] = 2;
    IS(run() == 2 && mprotect(at, PAGE, PROT_READ) == 0);
}
static void code_check(void) { IS(run() == 1); }

static void tls_make(void) { mine = 6; }
static void tls_change(void) { mine = 7; }
static void tls_check(void) { IS(mine == 6); }

static void deep(int n)
{
    volatile char room[PAGE];
    room[0] = (char)n;
    if (n)
        deep(n - 1);
}
static volatile int on_stack;
static void stack_make(void) { on_stack = 1; }
static void stack_change(void) { deep(200); }
static void stack_check(void)
{
    deep(300);
    IS(on_stack == 1);
}

static void rounding_make(void) { IS(fesetround(FE_DOWNWARD) == 0); }
static void rounding_change(void) { IS(fesetround(FE_UPWARD) == 0); }
static void rounding_check(void) { IS(fegetround() == FE_DOWNWARD); }

/* A thread that holds a value in a vector register until `go` is set, and has another one there
 * from then on. */
static volatile int go;
static float seen[8], second_value[8] = {9, 9, 9, 9, 9, 9, 9, 9};
static const float FIRST_VALUE[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static pthread_t holder;
__attribute__((target("avx"))) static void *hold(void *of)
{
    __asm__ volatile("vmovups %1, %%ymm9\n1: pause\n cmpl $0, %2\n je 1b\n vmovups %%ymm9, %0\n vmovups %3, %%ymm9\n"
                     : "=m"(seen)
                     : "m"(FIRST_VALUE), "m"(go), "m"(second_value)
                     : "xmm9", "memory", "cc");
    return of;
}
static void vectors_make(void)
{
    NEEDS(__builtin_cpu_supports("avx"));
    IS(pthread_create(&holder, NULL, hold, NULL) == 0);
    usleep(20000);
}
static void vectors_change(void)
{
    go = 1;
    pthread_join(holder, NULL);
}
static void vectors_spin_change(void) { seen[0] = 77; }
static void vectors_check(void)
{
    IS(go == 0 && seen[0] == 0);
    go = 1;
    pthread_join(holder, NULL);
    IS(!memcmp(seen, FIRST_VALUE, sizeof seen));
}

static struct timespec then;
static void vdso_make(void) { IS(clock_gettime(CLOCK_MONOTONIC, &then) == 0 && getauxval(AT_SYSINFO_EHDR)); }
static void vdso_change(void) { then.tv_sec += 1000; }
static void vdso_check(void)
{
    struct timespec now;
    IS(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec - then.tv_sec < 900 && now.tv_sec >= then.tv_sec);
}

static void growsdown_make(void)
{
    at = mmap(NULL, LEN, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_NORESERVE, -1, 0);
    IS(at != MAP_FAILED);
    memset(at, 8, LEN);
}

const struct object_case MEMORY[] = {
    {"data", data_make, data_change, data_check},
    {"heap", heap_make, heap_change, heap_check},
    {"brk-grown", brk_make, brk_change, brk_check},
    {"brk-lowered", brk_less_make, brk_less_change, brk_less_check},
    {"map-made", made_make, made_change, made_check},
    {"map-removed", mapped_make, mapped_change, mapped_check},
    {"map-hole", mapped_make, middle_change, mapped_check},
    {"map-protected", mapped_make, protect_change, protect_check},
    {"map-none", none_make, none_change, none_check},
    {"map-grown-moved", mapped_make, grown_change, mapped_check},
    {"map-shrunk", mapped_make, shrunk_change, mapped_check},
    {"map-dontneed", mapped_make, dontneed_change, mapped_check},
    {"map-replaced", mapped_make, replaced_change, mapped_check},
    {"map-growsdown", growsdown_make, mapped_change, mapped_check},
    {"file-private", private_make, private_change, private_check},
    {"file-private-removed", private_make, mapped_change, private_check},
    {"file-shared", shared_make, shared_change, shared_check},
    {"shared-anonymous", shared_anonymous_make, shared_change, shared_check},
    {"shared-memfd", shared_memfd_make, shared_change, shared_check},
    {"shared-unmapped", shared_memfd_make, shared_unmapped_change, shared_check},
    {"code", code_make, code_change, code_check},
    {"thread-local", tls_make, tls_change, tls_check},
    {"stack", stack_make, stack_change, stack_check},
    {"rounding", rounding_make, rounding_change, rounding_check},
    {"vectors-spinning", vectors_make, vectors_spin_change, vectors_check},
    {"vectors-thread-ended", vectors_make, vectors_change, vectors_check},
    {"vdso", vdso_make, vdso_change, vdso_check},
    {0},
};
