/* A task over a list whose nodes come from a wrapper of the allocator, in a program with an
 * allocator's function of its own. */
#include <stdio.h>
#include <stdlib.h>
struct node {
    struct node *next;
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

__attribute__((noinline)) int sum(void) {
    int all = 0;
    for (struct node *node = head; node != NULL; node = node->next) all += node->value;
    return all;
}

static void push(int value) {
    struct node *node = xrealloc(NULL, 1);
    node = xrealloc(node, sizeof *node); /* SITE */
    node->next = head;
    node->value = value;
    head = node;
}

int main(void) {
    for (int value = 0; value < 3; value++) push(value);
    return sum();
}
