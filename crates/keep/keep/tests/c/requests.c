/* requests SOCKET: answers one line on each connection with it, one connection after the other;
 * "poison" crashes, "loop" hangs, "ruin" has it accept on no descriptor from then on, "stop" ends
 * with status 7. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* An address where nothing is mapped; the compiler must not know it. */
static volatile int *volatile nowhere = (volatile int *)8;

int main(int argc, char **argv)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    static int listener;
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (argc != 2)
        return 2;
    strncpy(name.sun_path, argv[1], sizeof name.sun_path - 1);
    if (bind(listener, (struct sockaddr *)&name, sizeof name) == -1 || listen(listener, 8) == -1)
        return 3;
    for (;;) {
        char line[64], out[80];
        int fd = accept(listener, NULL, NULL);
        ssize_t bytes = read(fd, line, sizeof line - 1);
        if (bytes > 0) {
            line[bytes] = 0;
            if (strcmp(line, "stop\n") == 0)
                return 7;
            if (strcmp(line, "poison\n") == 0)
                *nowhere = 1;
            while (strcmp(line, "loop\n") == 0)
                __asm__ volatile("pause");
            if (strcmp(line, "ruin\n") == 0)
                listener = -1;
            int length = snprintf(out, sizeof out, "got %s", line);
            if (write(fd, out, (size_t)length) != length)
                return 4;
        }
        close(fd);
    }
}
