// For each line on its input makes a child that calls a function over and over, and answers with
// its process' id. First it prints the function's address.
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

volatile long sink;

__attribute__((noinline)) void counted(long x) { sink += x; }

int main(void) {
    printf("%p\n", (void *)counted);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        counted(1);
        int child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                counted(2);
        }
        printf("%d\n", child);
        fflush(stdout);
    }
}
