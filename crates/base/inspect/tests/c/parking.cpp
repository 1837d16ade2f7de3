// Waits in a frame of main's own for a thread that never comes: parking SEMAPHORE, where that is
// binary, counting, atomic or posix.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <semaphore.h>
#include <semaphore>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    puts("ready");
    fflush(stdout);
    if (!strcmp(kind, "binary")) {
        std::binary_semaphore done{0};
        done.acquire();
    } else if (!strcmp(kind, "counting")) {
        std::counting_semaphore<8> done{0};
        done.acquire();
    } else if (!strcmp(kind, "atomic")) {
        std::atomic<int> done{0};
        done.wait(0);
    } else {
        sem_t done;
        sem_init(&done, 0, 0);
        sem_wait(&done);
    }
}
