/*
 * "unseen": what a program sees of the descriptors that are open, by each call that names numbers.
 * "away N PROGRAM...": closes the session's N-th descriptor by the executive's own instruction,
 * which no rule sees, then executes the program. "unlink FILE": removes it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LIMIT 4200

static void list(const char *when) {
    DIR *folder = opendir("/proc/self/fd");
    printf("%s:", when);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder)) printf(" %s", entry->d_name);
    puts("");
    closedir(folder);
}

static int unseen(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    printf("limit %lu\n", limit.rlim_cur);
    limit.rlim_cur = limit.rlim_max < LIMIT ? limit.rlim_max : LIMIT;
    setrlimit(RLIMIT_NOFILE, &limit);
    int open_numbers = 0, copied = 0, closed = 0, mapped = 0;
    for (int file = 3; file < LIMIT; file++) {
        open_numbers += fcntl(file, F_GETFD) >= 0 || errno != EBADF;
        int copy = dup(file);
        copied += copy >= 0 || dup2(file, 3) >= 0 || dup3(file, 3, O_CLOEXEC) >= 0;
        mapped += mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0) != MAP_FAILED || errno != EBADF;
        closed += !close(file);
    }
    printf("open %d copied %d mapped %d closed %d\n", open_numbers, copied, mapped, closed);
    list("before");
    open("/dev/null", O_RDONLY);
    fcntl(0, F_DUPFD, LIMIT / 2);
    list("opened");
    printf("wrong %d", close_range(9, 3, 0));
    printf(" %d", close_range(9, ~0u, 1 << 5));
    printf(" %d\n", close_range(4100, 4100, 1 << 5));
    printf("range %d", close_range(3, ~0u, CLOSE_RANGE_CLOEXEC));
    printf(" %d", close_range(3, LIMIT / 2, 0));
    printf(" %d\n", close_range(3, ~0u, CLOSE_RANGE_UNSHARE));
    list("after");
    return 0;
}

static int away(int nth, char **words) {
    /* The library's fcntl asks the executive, and fstat asks nobody. */
    struct stat about;
    int file = 3;
    while (file < LIMIT && (syscall(SYS_fstat, file, &about) || fcntl(file, F_GETFD) >= 0)) file++;
    const unsigned char *code = (const unsigned char *)0x1f0000000000;
    while (memcmp(code, "\x0f\x05\xc3", 3)) code++;
    long result, number = SYS_close;
    __asm__ volatile("call *%3" : "=a"(result) : "a"(number), "D"((long)file + nth), "r"(code) : "rcx", "r11", "memory");
    printf("closed %ld\n", result);
    fflush(stdout);
    execv(words[0], words);
    puts(strerrorname_np(errno));
    return 9;
}

int main(int count, char **words) {
    if (count > 2 && !strcmp(words[1], "unlink")) return unlink(words[2]) ? 1 : 0;
    if (count > 3 && !strcmp(words[1], "away")) return away(atoi(words[2]), words + 3);
    return unseen();
}
