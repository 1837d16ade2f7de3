/* Two threads read from pipes of their own and random numbers; prints a sum that depends on each
 * byte. */
#include <pthread.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

static unsigned long sums[2];
static void *reads(void *argument) {
    long nth = (long)argument;
    unsigned char byte[7];
    ssize_t got;
    while ((got = read(nth ? 3 : 0, byte, sizeof byte)) > 0)
        for (ssize_t i = 0; i < got; i++) sums[nth] = sums[nth] * 31 + byte[i];
    return NULL;
}

int main(void) {
    pthread_t thread;
    unsigned long random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) return 1;
    if (pthread_create(&thread, NULL, reads, (void *)1)) return 2;
    reads(NULL);
    pthread_join(thread, NULL);
    printf("%lx %lx %lx\n", random, sums[0], sums[1]);
    return 0;
}
