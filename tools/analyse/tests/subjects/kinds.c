// Memory by other ways than malloc: mapped, grown, aligned, of the C library, on a stack.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
struct entry {
    char *name;
    long value;
};
static struct entry *entries;
static int count, room;
static int *mapped;
static void push(long value) {
    if (count == room) {
        room = room ? room * 2 : 4;
        entries = realloc(entries, room * sizeof *entries); // SITE
    }
    if (asprintf(&entries[count].name, "entry-%ld", value) < 0) abort(); // SITE
    entries[count++].value = value;
}
struct order {
    long *aligned;
    char *line;
    long factors[4];
};
__attribute__((noinline)) long total(struct order *order) {
    long all = 0;
    for (int i = 0; i < count; i++) all += entries[i].value + (entries[i].name[0] == 'e');
    all += order->aligned[7] + (order->line[0] == 'f') + order->factors[1] + mapped[9];
    long *own = malloc(64), local[8] = {1};
    own[0] = 1;
    all += own[0] + local[0];
    free(own);
    return all;
}
static void *run(void *unused) {
    struct order order = {0};
    size_t size = 0;
    void *unneeded = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); // SITE
    if (posix_memalign((void **)&order.aligned, 64, 64)) abort(); // SITE
    FILE *file = fmemopen((char *)"first\n", 6, "r");
    if (getline(&order.line, &size, file) < 0) abort(); // SITE
    fclose(file);
    munmap(unneeded, 4096);
    memset(order.aligned, 0, 64);
    order.factors[1] = 7;
    mapped[9] = 5;
    for (int i = 0; i < 6; i++) push(i);
    printf("%ld\n", total(&order)); // CALL
    return unused;
}
int main(void) {
    // A stack of the program's own is not among what the task needs.
    size_t size = 1 << 20;
    void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) || pthread_attr_setstack(&attributes, stack, size)) return 1;
    return pthread_create(&thread, &attributes, run, NULL) || pthread_join(thread, NULL);
}
