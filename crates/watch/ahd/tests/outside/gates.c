// A healthy program of old style: a mutex that one thread locks and another one unlocks, as a
// signal that there is work.
#include "../recorded/mark.h"

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER;
static volatile int left;

// Comes to rest at a lock that it locked itself the last time.
static void *consumer(void *x) {
    for (;;) {
        pthread_mutex_lock(&gate);
        if (x) pthread_mutex_unlock(&second);
    }
    return x;
}

// Passes once and ends: whoever comes next waits for a lock of a thread that is no more.
static void *passes_once(void *x) {
    pthread_mutex_lock(&gate);
    return x;
}

int main(int n, char **a) {
    pthread_t t;
    int two = n > 1 && !strcmp(a[1], "two"), slow = n > 1 && !strcmp(a[1], "slow");
    pthread_mutex_lock(&gate);
    if (n > 1 && !strcmp(a[1], "left"))
        for (int i = 0; i < 8; i++) {
            pthread_create(&t, NULL, passes_once, NULL);
            ms(i < 4 ? 300 : 6000);
            pthread_mutex_unlock(&gate);
            pthread_join(t, NULL);
        }
    pthread_mutex_lock(&second);
    pthread_create(&t, NULL, consumer, two ? &gate : NULL);
    for (int i = 0;; i++) {
        // Work comes often at first, then seldom.
        ms(i < 20 && !slow ? 100 : 7000);
        pthread_mutex_unlock(&gate);
        if (two) pthread_mutex_lock(&second);
    }
}
