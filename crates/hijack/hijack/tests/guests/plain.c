/* A program without a dynamic loader's calls, when linked statically. */
#include <stdio.h>

int main(void) {
    puts("plain");
    return 0;
}
