/* Loops without an end: loops still|flag|register|stack|vector. Prints "ready". */
#include <stdio.h>
#include <string.h>

static volatile int flag;

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "";
    puts("ready");
    fflush(stdout);
    if (!strcmp(way, "still")) for (;;) __asm__ volatile("");
    if (!strcmp(way, "flag")) while (!flag) { }
    if (!strcmp(way, "register")) for (unsigned long n = 0;; n++) __asm__ volatile("" : "+r"(n));
    if (!strcmp(way, "stack")) for (volatile unsigned long n = 0;; n++) { }
    if (!strcmp(way, "vector")) for (double x = 0;; x += 1) __asm__ volatile("" : "+x"(x));
    return 2;
}
