/* Hangs for `orbit bench why`: ring|self|fork|pipe|file. Prints "ready" once the hang is near. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

pthread_mutex_t accounts = PTHREAD_MUTEX_INITIALIZER, ledger = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t both;

static void *pay_order(void *unused) {
    pthread_mutex_lock(&accounts);
    pthread_barrier_wait(&both);
    pthread_mutex_lock(&ledger);
    return unused;
}

static void *refund_order(void *unused) {
    pthread_mutex_lock(&ledger);
    pthread_barrier_wait(&both);
    pthread_mutex_lock(&accounts);
    return unused;
}

static void *keep_ledger(void *unused) {
    pthread_mutex_lock(&ledger);
    pthread_barrier_wait(&both);
    pause();
    return unused;
}

static void *save_twice(void *unused) {
    pthread_mutex_lock(&accounts);
    pthread_mutex_lock(&accounts);
    return unused;
}

static pthread_t start(const char *name, void *(*work)(void *)) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    pthread_setname_np(thread, name);
    return thread;
}

static void write_entry(void) { pthread_mutex_lock(&ledger); }

static void read_answer(int from) {
    char byte;
    if (read(from, &byte, 1) != 1)
        exit(1);
}

static void take_turn(int file) { flock(file, LOCK_EX); }

int main(int argc, char **argv) {
    const char *way = argc > 2 ? argv[1] : "";
    int ends[2];
    pthread_barrier_init(&both, NULL, 2);
    puts("ready");
    fflush(stdout);
    if (!strcmp(way, "ring")) {
        pthread_t pays = start("pays", pay_order);
        start("refunds", refund_order);
        pthread_join(pays, NULL);
    } else if (!strcmp(way, "self")) {
        pthread_join(start("saves", save_twice), NULL);
    } else if (!strcmp(way, "fork")) {
        start("keeps", keep_ledger);
        pthread_barrier_wait(&both);
        if (fork() == 0)
            write_entry();
        else
            wait(NULL);
    } else if (!strcmp(way, "pipe") && pipe(ends) == 0) {
        if (fork() == 0) {
            pause();
            _exit(0);
        }
        close(ends[1]);
        read_answer(ends[0]);
    } else if (!strcmp(way, "file")) {
        int file = open(argv[2], O_CREAT | O_RDWR, 0600);
        if (fork() == 0) {
            int own = open(argv[2], O_RDWR);
            usleep(200000);
            take_turn(own);
            _exit(0);
        }
        flock(file, LOCK_EX);
        wait(NULL);
    }
    return 1;
}
