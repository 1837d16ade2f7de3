/* datagrams SOCKET HOW: answers each datagram of a named unix socket with the number of those so
 * far, an empty one with "empty"; one that begins with p kills it, one that begins with e ends it.
 * HOW: "polls" waits by poll, then reads a socket that blocks; "drains" reads one that does not. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int main(int argc, char **argv)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX}, from;
    socklen_t length = sizeof from;
    int *volatile nowhere = NULL;
    int own = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (argc != 3 || strlen(argv[1]) >= sizeof name.sun_path)
        return 2;
    strcpy(name.sun_path, argv[1]);
    if (!strcmp(argv[2], "drains"))
        fcntl(own, F_SETFL, O_NONBLOCK);
    if (bind(own, (struct sockaddr *)&name, sizeof name) == -1)
        return 3;
    for (int count = 0;;) {
        char in[16], out[16];
        struct pollfd wait = {own, POLLIN, 0};
        poll(&wait, 1, -1);
        length = sizeof from;
        ssize_t bytes = recvfrom(own, in, sizeof in, 0, (struct sockaddr *)&from, &length);
        if (bytes < 0 && errno == EAGAIN)
            continue;
        if (bytes < 0)
            return 4;
        if (bytes && *in == 'e')
            return 7;
        if (bytes && *in == 'p')
            *nowhere = 1;
        if (bytes)
            sprintf(out, "%d", ++count);
        else
            strcpy(out, "empty");
        sendto(own, out, strlen(out), 0, (struct sockaddr *)&from, length);
    }
}
