/*
 * A program with one bug in each error path; with -DHEALTHY its twin that does the same and
 * has none of them. argv[1]: the folder it works in.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef HEALTHY
#define IS_HEALTHY 1
#else
#define IS_HEALTHY 0
#endif
#define PART __attribute__((noinline))

/* mkdir fails: the careless one continues as if it had a pointer. */
PART int crashes(void) {
    char *volatile made = mkdir("d", 0700) ? NULL : "d";
    if (!made && IS_HEALTHY) return 1;
    if (*(volatile char *)made != 'd') return 1;
    return rmdir("d");
}

/* socketpair's place: pipe2 fails, and the careless one waits for a peer that never comes. */
PART int hangs(void) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) {
        if (IS_HEALTHY) return 1;
        for (;;) pause();
    }
    return close(ends[0]) || close(ends[1]);
}

/* fdatasync fails: the file is given up, its descriptor is not. */
PART int leaks_descriptor(void) {
    int fd = open("a", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fdatasync(fd) && !IS_HEALTHY) return unlink("a");
    close(fd);
    return unlink("a");
}

/* fsync fails: the buffer is given up without munmap. */
PART int leaks_memory(void) {
    char *buffer = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int folder = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), failed = fsync(folder);
    close(folder);
    if (failed && !IS_HEALTHY) return 0;
    munmap(buffer, 1 << 20);
    return 0;
}

/* ftruncate fails: the child is forgotten, and still runs at the end. */
PART int leaks_child(void) {
    int file = open("b", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    pid_t child = fork();
    if (!child) {
        /* For ever, but not beyond a test that fails. */
        alarm(600);
        for (;;) pause();
    }
    int failed = ftruncate(file, 10);
    close(file);
    unlink("b");
    if (failed && !IS_HEALTHY) return 0;
    kill(child, SIGKILL);
    return waitpid(child, NULL, 0) != child;
}

/* rename fails: the program says so, and leaves its temporary file. */
PART int leaves_file(void) {
    close(open("t.tmp", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (rename("t.tmp", "t")) {
        if (IS_HEALTHY) unlink("t.tmp");
        return 1;
    }
    return unlink("t");
}

/* A write that is cut is taken for whole: the file is short, and the program reports success. */
PART int loses_data(void) {
    int fd = open("data", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const char *text = "important\n";
    ssize_t done = 0, all = strlen(text);
    do {
        ssize_t n = pwrite(fd, text + done, all - done, done);
        if (n < 0) return 1;
        done += n;
    } while (IS_HEALTHY && done < all);
    return close(fd);
}

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1])) return 9;
    int failed = crashes() + hangs() + leaks_descriptor() + leaks_memory() + leaks_child() + leaves_file() + loses_data();
    return failed ? 1 : 0;
}
