/*
 * Two functions write by the same instruction of libc: the first checks, the second does not. With
 * an argument: the file.
 */
#include <fcntl.h>
#include <unistd.h>

static int writes_first(int file) { return write(file, "a", 1) == 1; }

static void writes_second(int file) { write(file, "b", 1); }

int main(int count, char **words) {
    if (count != 2) return 1;
    int file = open(words[1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || !writes_first(file)) return 2;
    writes_second(file);
    return close(file) ? 3 : 0;
}
