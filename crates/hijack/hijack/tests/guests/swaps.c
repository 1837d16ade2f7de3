/*
 * Another thread changes what a call's argument points to while the call is judged: the kernel must
 * get what was judged. Arguments: a file and a socket that a rule denies, and names that do not
 * exist, of the same lengths.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char path[4096];
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static volatile int begun;

static void *swaps(void *argument) {
    char **words = argument;
    while (!begun) usleep(1000);
    usleep(100000); /* the rule waits for longer */
    strcpy(path, words[1]);
    strcpy(address.sun_path, words[3]);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 99;
    for (int which = 0; which < 2; which++) {
        pthread_t thread;
        begun = 0;
        strcpy(path, argv[2]);
        strcpy(address.sun_path, argv[4]);
        pthread_create(&thread, NULL, swaps, argv);
        int socket_of = socket(AF_UNIX, SOCK_STREAM, 0), result;
        begun = 1;
        result = which ? connect(socket_of, (struct sockaddr *)&address, sizeof address) : open(path, O_RDONLY);
        printf("%s %d %s\n", which ? "connect" : "open", result < 0, result < 0 ? strerror(errno) : "");
        pthread_join(thread, NULL);
        close(socket_of);
    }
    return 0;
}
