/* Ends by itself with the status it is given, after a moment and with a second thread. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static volatile unsigned long sink;

static void *other(void *a)
{
    for (;;) sink++;
    return a;
}
int main(int argc, char **argv)
{
    pthread_t t;
    int code = argc > 1 ? atoi(argv[1]) : 0;
    pthread_create(&t, NULL, other, NULL);
    usleep(100 * (code % 20));
    _exit(code);
}
