/* confined SOCKET FILE HOW: answers each byte of one connection with the number of bytes so far.
 * HOW: "line" writes a line to FILE by stdio before each answer, "after" does so after it has sent
 * itself a signal and had a thread run, "last" after the answer, "whole" has written FILE anew
 * before each; "timed" reads the clock after the line; "reads" reads FILE by stdio, has a thread
 * run and sends itself a signal; "plain" does nothing. A byte p kills it before its answer, a byte
 * a by an assertion. Ends with 7. */
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static volatile int signals;

static void on_signal(int sig)
{
    (void)sig;
    signals++;
}

static void *doubled(void *number)
{
    return (void *)(2 * (long)number);
}

static int runs(long number)
{
    pthread_t thread;
    void *result;
    raise(SIGUSR1);
    pthread_create(&thread, NULL, doubled, (void *)number);
    pthread_join(thread, &result);
    return (long)result == 2 * number && signals == number;
}

static int reads(const char *path, long number)
{
    char line[64] = "";
    FILE *file = fopen(path, "r");
    int is_read = file && fgets(line, sizeof line, file) && !strcmp(line, "one line\n");
    fclose(file);
    return runs(number) && is_read;
}

int main(int argc, char **argv)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (argc != 4 || strlen(argv[1]) >= sizeof name.sun_path)
        return 2;
    strcpy(name.sun_path, argv[1]);
    signal(SIGUSR1, on_signal);
    int is_last = !strcmp(argv[3], "last"), is_whole = !strcmp(argv[3], "whole");
    int is_after = !strcmp(argv[3], "after"), is_timed = !strcmp(argv[3], "timed");
    int has_lines = is_last || is_after || is_timed || !strcmp(argv[3], "line");
    FILE *lines = has_lines ? fopen(argv[2], "a") : NULL;
    int *volatile nowhere = NULL;
    if (bind(listener, (struct sockaddr *)&name, sizeof name) == -1 || listen(listener, 5) == -1)
        return 3;
    int client = accept(listener, NULL, NULL);
    char byte, answer[32];
    for (long number = 1; read(client, &byte, 1) == 1; number++) {
        if (is_after && !runs(number))
            return 5;
        if (lines && !is_last) {
            fprintf(lines, "line %ld\n", number);
            fflush(lines);
        }
        if (is_whole) {
            FILE *whole = fopen(argv[2], "w");
            fprintf(whole, "%ld\n", number);
            fclose(whole);
        }
        if (!strcmp(argv[3], "reads") && !reads(argv[2], number))
            return 4;
        if (is_timed && time(NULL) == 0)
            return 6;
        if (byte == 'p')
            *nowhere = 1;
        assert(byte != 'a');
        write(client, answer, (size_t)sprintf(answer, "%ld ", number));
        if (is_last) {
            fprintf(lines, "line %ld\n", number);
            fflush(lines);
        }
    }
    return 7;
}
