// A file system that answers nothing, and a program that hangs on it in a call that no signal ends,
// and in a ring of locks besides.
//   stuck serve DIR    mounts it there, in a namespace of its own; says "ready" when it can be used, "asked" at each request
//   stuck hang FILE    asks for the file
// 77 where it cannot be mounted.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static int cannot(const char *what) {
    perror(what);
    return 77;
}

static int serve(const char *dir) {
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    if (fuse < 0 || unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        return cannot("/dev/fuse in a namespace");
    }
    if (mount("stuck", dir, "fuse", 0, options) != 0) {
        return cannot("mount");
    }
    static char request[1 << 20];
    for (;;) {
        if (read(fuse, request, sizeof request) < (ssize_t)sizeof(struct fuse_in_header)) {
            return 1;
        }
        struct fuse_in_header in;
        memcpy(&in, request, sizeof in);
        if (in.opcode == FUSE_INIT) {
            struct {
                struct fuse_out_header head;
                struct fuse_init_out init;
            } out = {.head = {.len = sizeof out, .unique = in.unique}, .init = {.major = 7, .minor = 31, .max_write = 1 << 16}};
            if (write(fuse, &out, sizeof out) != sizeof out) {
                return cannot("init");
            }
        }
        puts(in.opcode == FUSE_INIT ? "ready" : "asked");
        fflush(stdout);
    }
}

static pthread_mutex_t locks[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static pthread_barrier_t both;

static void *ask(void *file) {
    struct stat s;
    stat(file, &s);
    return NULL;
}

static void *member(void *own) {
    long i = (long)own;
    // Time to be known.
    usleep(500000);
    pthread_mutex_lock(&locks[i]);
    pthread_barrier_wait(&both);
    pthread_mutex_lock(&locks[1 - i]);
    return NULL;
}

int main(int n, char **args) {
    if (n == 3 && strcmp(args[1], "serve") == 0) {
        return serve(args[2]);
    }
    if (n != 3) {
        return 2;
    }
    pthread_t asks, other;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&asks, NULL, ask, args[2]);
    pthread_create(&other, NULL, member, (void *)1L);
    member((void *)0L);
    return 0;
}
