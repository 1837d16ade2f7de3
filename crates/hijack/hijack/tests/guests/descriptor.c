/* Executes argument 1 by its descriptor, which exec closes if argument 2 is "closed". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count != 3) return 2;
    int file = open(words[1], O_RDONLY | (strcmp(words[2], "closed") ? 0 : O_CLOEXEC));
    fexecve(file, (char *[]){words[1], NULL}, environ);
    puts(strerrorname_np(errno));
    return 0;
}
