/* Two threads move money between two accounts and take the accounts' locks in opposite order:
 * they deadlock sooner or later. Build: cc -O1 -g transfer.c -o transfer -lpthread. Then: orbit
 * watch -- ./transfer */
#include <pthread.h>
#include <stdio.h>

struct account {
    pthread_mutex_t lock;
    long balance;
};

static struct account alice = {PTHREAD_MUTEX_INITIALIZER, 1000};
static struct account bob = {PTHREAD_MUTEX_INITIALIZER, 1000};

static void transfer(struct account *from, struct account *to, long amount)
{
    pthread_mutex_lock(&from->lock);
    pthread_mutex_lock(&to->lock); /* the bug: the order depends on the direction */
    from->balance -= amount;
    to->balance += amount;
    pthread_mutex_unlock(&to->lock);
    pthread_mutex_unlock(&from->lock);
}

static void *alice_pays(void *unused)
{
    for (;;)
        transfer(&alice, &bob, 1);
    return unused;
}

static void *bob_pays(void *unused)
{
    for (;;)
        transfer(&bob, &alice, 1);
    return unused;
}

int main(void)
{
    pthread_t threads[2];
    if (pthread_create(&threads[0], NULL, alice_pays, NULL) != 0
        || pthread_create(&threads[1], NULL, bob_pays, NULL) != 0) {
        fprintf(stderr, "cannot create threads\n");
        return 1;
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
