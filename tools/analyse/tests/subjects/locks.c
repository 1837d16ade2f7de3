/* A task that follows a chain of locks; what it reads is made in five places, one through a
 * function pointer. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct waiter { int id; struct waiter *waits_for; char payload[200]; int mark; };
struct lock { int id; struct waiter *owner; char *name; };
struct registry { int used; struct lock **cells; };
static struct registry *registry;
int deepest;
int untouched = 7;
static struct waiter *dangling;
static char *other[64];
static char *label;
static void *plain(size_t size) {
    return malloc(size); /* SITE plain */
}
static void *(*volatile allocate)(size_t) = plain;
static struct lock *new_lock(int id) {
    struct lock *lock = calloc(1, sizeof *lock); /* SITE lock */
    lock->id = id;
    return lock;
}
static struct waiter *new_waiter(int id) {
    struct waiter *waiter = allocate(sizeof *waiter);
    memset(waiter, 0, sizeof *waiter);
    waiter->id = id;
    return waiter;
}
static void noise(int i) {
    other[i % 64] = malloc(200); /* NOISE */
    memset(other[i % 64], 'n', 200);
}
__attribute__((noinline)) long chain_length(int first, int ends[2]) {
    long length = 0;
    char text[64];
    for (struct waiter *w = registry->cells[first]->owner; w != NULL && length < 100; w = w->waits_for) length++;
    length += (long)strlen(registry->cells[first]->name);
    /* Vector loads go beyond its end, into what lies behind. */
    length += (long)strlen(label);
    if (length > deepest) deepest = (int)length;
    /* Memory of the task's own, a system call on the program's. */
    char *own = malloc(4096);
    memset(own, 1, 4096);
    free(own);
    if (write(ends[1], registry->cells[first]->name, 4) != 4 || read(ends[0], text, 4) != 4) return -1;
    return length;
}
__attribute__((noinline)) int reads_freed(void) { return dangling->mark; }
static volatile int stop;
static void *busy(void *ignored) {
    for (int i = 0; !stop; i++) free(malloc(16 + i % 100));
    return ignored;
}
int main(int argc, char **argv) {
    (void)argv;
    int ends[2];
    pthread_t thread;
    label = malloc(40); /* SITE label */
    noise(63);
    memset(label, 'l', 38);
    label[38] = 0;
    if (pipe(ends) != 0 || pthread_create(&thread, NULL, busy, NULL) != 0) return 3;
    registry = malloc(sizeof *registry); /* SITE registry */
    registry->cells = NULL;
    for (registry->used = 0; registry->used < 8; registry->used++) {
        registry->cells = realloc(registry->cells, sizeof(void *) * (registry->used + 1)); /* SITE cells */
        struct lock *lock = new_lock(registry->used);
        noise(2 * registry->used);
        if (posix_memalign((void **)&lock->name, 64, 40) != 0) return 3; /* SITE name */
        noise(2 * registry->used + 1);
        snprintf(lock->name, 40, "the lock with the number %d", registry->used);
        lock->owner = new_waiter(registry->used);
        registry->cells[registry->used] = lock;
        if (registry->used > 0) registry->cells[registry->used - 1]->owner->waits_for = lock->owner;
    }
    long length = chain_length(0, ends);
    length += chain_length(3, ends);
    dangling = malloc(sizeof *dangling); /* SITE dangling */
    free(dangling);
    if (argc > 1) reads_freed();
    stop = 1;
    pthread_join(thread, NULL);
    printf("%ld %d\n", length, deepest);
    return 5;
}
