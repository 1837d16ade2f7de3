// Loads two plugins by a thread each, the first again and again, and calls a task: its name is the
// last argument.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void *load(void *name) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) abort();
    return library;
}
static void *load_all(void *name) {
    for (int i = 0; i < 20; i++) dlclose(load(name));
    return load(name);
}
int main(int count, char **words) {
    pthread_t threads[2];
    void *libraries[2];
    if (count != 4) return 1;
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, i ? load : load_all, words[i + 1]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], &libraries[i]);
    long (*task)(void) = NULL;
    for (int i = 0; i < 2 && !task; i++) *(void **)&task = dlsym(libraries[i], words[3]);
    return task ? (int)task() : 2;
}
