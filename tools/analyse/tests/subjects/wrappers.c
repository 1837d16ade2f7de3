/* A task over a list whose nodes come from a wrapper of the allocator, which the task itself uses
 * too, and from a function that returns what it allocates; in a program with an allocator's
 * function of its own. */
#include <stdio.h>
#include <stdlib.h>
struct node {
    struct node *next;
    int value;
};
struct other {
    int value;
};
static struct node *head;

/* As jemalloc's is for what another allocator has made. */
size_t malloc_usable_size(void *p) {
    (void)p;
    abort();
}

static __attribute__((noinline)) void *xrealloc(void *old, size_t size) {
    void *p = realloc(old, size);
    if (p == NULL) abort();
    return p;
}

static __attribute__((noinline)) void *take(size_t size) {
    void *taken = malloc(size); /* SITE taken */
    if (taken == NULL) abort();
    return taken;
}

__attribute__((noinline)) int sum(void) {
    int *all = xrealloc(NULL, sizeof *all);
    *all = 0;
    for (struct node *node = head; node != NULL; node = node->next) *all += node->value;
    int result = *all;
    free(all);
    return result;
}

static void push(int value) {
    struct node *node = xrealloc(NULL, 1); /* LIKELY */
    node = xrealloc(node, sizeof *node); /* SITE */
    node->next = head;
    node->value = value;
    head = node;
}

int main(void) {
    struct other *other = xrealloc(NULL, sizeof *other);
    for (other->value = 0; other->value < 3; other->value++) push(other->value);
    free(other);
    struct node *first = take(sizeof *first);
    first->next = head;
    first->value = 0;
    head = first;
    return sum();
}
