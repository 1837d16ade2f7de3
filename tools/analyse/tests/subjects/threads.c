/* The task is called by several threads at once, by a forked child, and between programs that
 * are started. */
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
struct node { int value; struct node *next; };
static struct node *list;
__attribute__((noinline)) int sum(struct node *n) {
    int total = 0;
    for (; n != NULL; n = n->next) total += n->value;
    return total;
}
static void *calls(void *failed) {
    for (int i = 0; i < 50; i++)
        if (sum(list) != 10) *(volatile int *)failed = 1;
    return NULL;
}
int main(void) {
    static volatile int failed;
    for (int i = 1; i < 5; i++) {
        struct node *n = malloc(sizeof *n); /* SITE */
        n->value = i;
        n->next = list;
        list = n;
    }
    pthread_t threads[3];
    int status = 1;
    pid_t child = fork();
    if (child == 0) _exit(sum(list) == 10 ? 0 : 1);
    if (waitpid(child, &status, 0) != child || status != 0) return 1;
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, calls, (void *)&failed);
    char *arguments[] = {"true", NULL};
    if (posix_spawnp(&child, "true", NULL, NULL, arguments, environ) != 0) return 2;
    if (waitpid(child, &status, 0) != child || status != 0) return 3;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    /* The copies are nobody's children here. */
    return failed ? 4 : wait(NULL) == -1 ? 0 : 5;
}
