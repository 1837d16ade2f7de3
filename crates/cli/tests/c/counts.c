// Writes each signal it gets to the file of its first argument, one byte for one signal: its
// number, as a letter from 'A'. Ends with 6 at SIGUSR2. With a second argument it leaves its
// process group first.
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static int file;

static void note(int signal) {
    char letter = (char)('A' + signal);
    if (write(file, &letter, 1) != 1 || signal == SIGUSR2) {
        _exit(6);
    }
}

int main(int n, char **args) {
    if (n > 2) {
        setsid();
    }
    file = open(args[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
    struct sigaction a = {.sa_handler = note};
    int all[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGABRT, SIGRTMIN + 3};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        sigaction(all[i], &a, NULL);
    }
    // Ready.
    if (write(file, "!", 1) != 1) {
        return 1;
    }
    for (;;) {
        pause();
    }
}
