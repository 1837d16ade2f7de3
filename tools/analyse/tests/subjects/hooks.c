// A library calls the allocator through a pointer that its user may set.
#include <stdio.h>
#include <stdlib.h>
struct hooks {
    void *(*allocate)(size_t size);
    void (*release)(void *memory);
};
static struct hooks hooks = {malloc, free};
struct node {
    struct node *next;
    int value;
};
struct other {
    int value;
};
static struct node *first;
__attribute__((noinline)) int sum(void) {
    int all = 0;
    for (struct node *node = first; node; node = node->next) all += node->value;
    return all;
}
static struct node *new_node(int value) {
    struct node *node = (struct node *)hooks.allocate(sizeof *node); // SITE
    node->value = value;
    node->next = first;
    return node;
}
int main(void) {
    struct other *other = (struct other *)hooks.allocate(sizeof *other);
    for (other->value = 1; other->value <= 3; other->value++) first = new_node(other->value);
    hooks.release(other);
    return sum();
}
