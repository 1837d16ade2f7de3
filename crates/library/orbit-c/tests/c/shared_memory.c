/* Memory that main shares with other processes: a task reads it and cannot write it, or as the
 * program chose. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>

#define KINDS 5
static volatile long *kinds[KINDS];
static const char *const names[KINDS] = { "anonymous", "memfd", "file", "System V", "second page of a file" };

struct job {
    volatile long *at;
};

static long reads(void *store, void *args)
{
    (void)store;
    return *((struct job *)args)->at;
}

static long writes(void *store, void *args)
{
    (void)store;
    *((struct job *)args)->at = 13;
    return 13;
}

/* A system call that writes there. */
static long has_it_written(void *store, void *args)
{
    (void)store;
    int zero = open("/dev/zero", O_RDONLY);
    long done = read(zero, (void *)((struct job *)args)->at, 8);
    int errno_ = errno;
    close(zero);
    return done == 8 ? 0 : errno_;
}

static volatile long *mapped(int fd, size_t offset)
{
    void *at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    CHECK(at != MAP_FAILED);
    return (long *)((char *)at + offset);
}

/* Calls until the orbit that crashed is there again. */
static int call(struct orbit *orbit, orbit_entry what, volatile long *at, struct orbit_outcome *end)
{
    struct job job = { at };
    GIVES(orbit_wait_ready(orbit, 60000000), 0);
    return orbit_call(orbit, 0, NULL, what, &job, sizeof job, end);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    int allowed = atoi(argv[1]);
    char path[] = "/tmp/orbit-c-shared-XXXXXX";
    int file = mkstemp(path), memory = memfd_create("mains", MFD_CLOEXEC);
    CHECK(file >= 0 && memory >= 0 && ftruncate(file, 8192) == 0 && ftruncate(memory, 8192) == 0);
    int id = shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600);
    CHECK(id >= 0);
    kinds[0] = mapped(-1, 0), kinds[1] = mapped(memory, 8), kinds[2] = mapped(file, 16), kinds[3] = shmat(id, NULL, 0);
    kinds[4] = mapped(file, 4096);
    CHECK(shmctl(id, IPC_RMID, NULL) == 0 && unlink(path) == 0);
    struct orbit_config config = ORBIT_CONFIG_INIT;
    config.shared_memory = 7;
    GIVES(orbit_init_with(&config), -EINVAL);
    if (allowed == ORBIT_SHARED_READ_ONLY) {
        GIVES(orbit_init(), 0); /* the default */
    } else {
        config.shared_memory = allowed;
        GIVES(orbit_init_with(&config), 0);
    }
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    options.entry = reads, options.restart = ORBIT_RESTART_ALWAYS;
    struct orbit *orbit = orbit_create_with(&options);
    CHECK(orbit);
    for (int kind = 0; kind < KINDS; kind++) {
        struct orbit_outcome end;
        fprintf(stderr, "%s\n", names[kind]);
        *kinds[kind] = 40 + kind;
        int result = call(orbit, reads, kinds[kind], &end);
        if (allowed == ORBIT_SHARED_ABSENT) {
            GIVES(result, -EREMOTEIO);
            CHECK(strstr(end.text, "MAP_SHARED") && end.address == (void *)kinds[kind]);
        } else {
            GIVES(result, 0);
            GIVES(end.value, 40 + kind); /* as it is now, whenever the orbit was made */
        }
        result = call(orbit, writes, kinds[kind], &end);
        if (allowed == ORBIT_SHARED_WRITABLE) {
            GIVES(result, 0);
            GIVES(*kinds[kind], 13);
        } else {
            GIVES(result, -EREMOTEIO);
            GIVES(end.signal, 11);
            CHECK(strstr(end.text, "MAP_SHARED") && end.address == (void *)kinds[kind]);
            GIVES(*kinds[kind], 40 + kind);
        }
        *kinds[kind] = 50;
        GIVES(call(orbit, has_it_written, kinds[kind], &end), 0);
        GIVES(end.value, allowed == ORBIT_SHARED_WRITABLE ? 0 : EFAULT);
        GIVES(*kinds[kind], allowed == ORBIT_SHARED_WRITABLE ? 0 : 50);
    }
    /* What it has of its own it may crash in as ever, with no such words. */
    struct orbit_outcome end;
    GIVES(call(orbit, writes, (long *)16, &end), -EREMOTEIO);
    CHECK(!strstr(end.text, "MAP_SHARED"));
    return 0;
}
