/* heap SOCKET: answers each line on a connection with it and a count. Three words set off bugs of
 * the heap that come each time:
 *   overflow       writes 40 bytes beyond a block, over the neighbour that has a pointer
 *   uninitialised  follows a pointer in memory that it has not written
 *   freed          follows a pointer in a block that it has freed, after another one has written there
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct item { long *count; };
/* Larger than what the C library frees at its start: they come from memory that was never used,
 * side by side. */
struct large { long *count; char bytes[992]; };

static long counts;

static void overflow(void)
{
    /* One of the two is the neighbour, whichever way the allocator goes. */
    /* The compiler must not know what they hold. */
    volatile struct large *first = malloc(sizeof *first);
    char *text = malloc(sizeof *first);
    volatile struct large *second = malloc(sizeof *second);
    first->count = second->count = &counts;
    memset(text, 'A', *(volatile size_t *)&(size_t){sizeof *first + 40});
    __asm__ volatile("" : : "r"(text) : "memory");
    ++*first->count;
    --*second->count;
    ++*first->count;
    free((void *)first);
    free((void *)second);
    free(text);
}

static void uninitialised(void)
{
    char *before = malloc(2000);
    memset(before, 'A', 2000);
    /* The compiler must not drop what is freed. */
    __asm__ volatile("" : : "r"(before) : "memory");
    free(before);
    struct item *items = malloc(1990);
    if (items[64].count)
        ++*items[64].count;
    else
        ++counts;
    free(items);
}

static void freed(void)
{
    struct item *volatile item = malloc(sizeof *item);
    item->count = &counts;
    free(item);
    long *other = malloc(sizeof *item);
    *other = 0x4141414141414141;
    __asm__ volatile("" : : "r"(other) : "memory");
    ++*item->count;
    free(other);
}

static void answer(int fd, char *line)
{
    char out[128];
    if (strcmp(line, "overflow") == 0)
        overflow();
    else if (strcmp(line, "uninitialised") == 0)
        uninitialised();
    else if (strcmp(line, "freed") == 0)
        freed();
    else
        ++counts;
    int bytes = snprintf(out, sizeof out, "%s %ld\n", line, counts);
    if (write(fd, out, (size_t)bytes) != bytes)
        exit(4);
}

int main(int argc, char **argv)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct pollfd fds[17] = {{.fd = socket(AF_UNIX, SOCK_STREAM, 0), .events = POLLIN}};
    int count = 1;
    if (argc != 2)
        return 2;
    strncpy(name.sun_path, argv[1], sizeof name.sun_path - 1);
    if (bind(fds[0].fd, (struct sockaddr *)&name, sizeof name) == -1 || listen(fds[0].fd, 8) == -1)
        return 3;
    for (;;) {
        poll(fds, (nfds_t)count, -1);
        if (fds[0].revents & POLLIN && count < 17)
            fds[count++] = (struct pollfd){.fd = accept(fds[0].fd, NULL, NULL), .events = POLLIN};
        for (int i = 1; i < count; i++) {
            char line[64];
            if (!fds[i].revents)
                continue;
            ssize_t bytes = read(fds[i].fd, line, sizeof line - 1);
            if (bytes <= 0) {
                close(fds[i].fd);
                fds[i--] = fds[--count];
                continue;
            }
            line[bytes] = 0;
            line[strcspn(line, "\n")] = 0;
            if (strcmp(line, "stop") == 0)
                return 7;
            answer(fds[i].fd, line);
        }
    }
}
