/* A program that handles some faults and not others. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
    /* Not checked: a crash. */
    char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory[0] = 1;
    /* Waits for a peer that never comes: a hang. */
    int ends[2];
    while (pipe2(ends, O_CLOEXEC)) pause();
    write(ends[1], "1234", 4);
    /* One read is taken for all: lost data. */
    char text[8] = {0};
    read(ends[0], text, 4);
    /* Handled by another way: no difference. */
    int copy = dup(1);
    if (copy < 0) copy = 1;
    struct pollfd nothing = {.fd = -1};
    if (poll(&nothing, 1, 0) < 0) return 3;
    dprintf(copy, "read %s\n", text);
    return 0;
}
