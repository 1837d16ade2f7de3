/* prefork FOLDER CHILDREN: a server whose children take connections one at a time, under a lock
 * between them (fcntl), and ask a backend for each.
 *
 * Words: "poison" crashes after the backend has answered; "late" crashes when the answer was sent
 * and the connection closed; "stop" ends the child. Each answer has the number of answers that the
 * child has given: a rollback must not lose it in the replay of a request.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* An address where nothing is mapped; the compiler must not know it. */
static volatile int *volatile nowhere = (volatile int *)8;

/* Answers each line with itself. */
static void be_backend(int fd)
{
    char line[64];
    ssize_t bytes;
    while ((bytes = read(fd, line, sizeof line)) > 0)
        if (write(fd, line, (size_t)bytes) != bytes)
            break;
    _exit(0);
}

static void hold(int lock, short type)
{
    struct flock whole = {.l_type = type, .l_whence = SEEK_SET};
    if (fcntl(lock, F_SETLKW, &whole) == -1)
        _exit(5);
}

static int serve(int listener, int lock, int backend)
{
    for (;;) {
        char line[64], same[64], out[128];
        int is_late = 0, is_stop = 0;
        hold(lock, F_WRLCK);
        int fd = accept(listener, NULL, NULL);
        hold(lock, F_UNLCK);
        ssize_t bytes = read(fd, line, sizeof line - 1);
        if (bytes > 0) {
            line[bytes] = 0;
            if (write(backend, line, (size_t)bytes) != bytes || read(backend, same, sizeof same) != bytes)
                return 6;
            if (strcmp(line, "poison\n") == 0)
                *nowhere = 1;
            is_late = strcmp(line, "late\n") == 0;
            is_stop = strcmp(line, "stop\n") == 0;
            int length = snprintf(out, sizeof out, "%d got %.*s", (int)getpid(), (int)bytes, same);
            if (write(fd, out, (size_t)length) != length)
                return 4;
        }
        close(fd);
        if (is_late)
            *nowhere = 1;
        if (is_stop)
            return 7;
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), statuses = 0, status;
    if (argc != 3 || chdir(argv[1]) == -1)
        return 2;
    int lock = open("lock", O_RDWR | O_CREAT, 0600), children = atoi(argv[2]);
    strcpy(name.sun_path, "socket");
    if (lock == -1 || bind(listener, (struct sockaddr *)&name, sizeof name) == -1 || listen(listener, 64) == -1)
        return 3;
    for (int i = 0; i < children; i++) {
        if (fork() == 0) {
            int ends[2];
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == -1)
                _exit(3);
            if (fork() == 0) {
                close(ends[0]);
                be_backend(ends[1]);
            }
            close(ends[1]);
            _exit(serve(listener, lock, ends[0]));
        }
    }
    for (int i = 0; i < children; i++)
        if (wait(&status) > 0 && WIFEXITED(status))
            statuses += WEXITSTATUS(status);
    return statuses;
}
