/* Looks like a Python interpreter whose structures are rubbish: rubbish VERSION cycle|random SEED. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS (1 << 16)
#ifndef OLD
unsigned long Py_Version = 1;
#endif
uint64_t _PyRuntime[WORDS] = {1};

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    uint64_t s = strtoull(argv[3], NULL, 0) * 2 + 1;
#ifndef OLD
    Py_Version = (unsigned long)strtoul(argv[1], NULL, 0);
#endif
    for (int i = 0; i < WORDS; i++) {
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t inside = (uint64_t)&_PyRuntime[(s >> 33) % WORDS];
        if (!strcmp(argv[2], "cycle")) _PyRuntime[i] = (uint64_t)&_PyRuntime[i & 1023];
        else switch ((s >> 20) % 8) {
        case 0: _PyRuntime[i] = s; break;
        case 1: _PyRuntime[i] = s >> 50; break;
        case 2: _PyRuntime[i] = (s & ~0xffull) | 0x64; break;
        default: _PyRuntime[i] = inside; break;
        }
    }
    if (argc > 4) {
        /* A table of offsets as from 3.13 on, itself in order or not. */
        memcpy(_PyRuntime, "xdebugpy", 8);
        for (int i = 2; i < 71; i++) _PyRuntime[i] = !strcmp(argv[4], "wild") ? s >> (i & 31) : (uint64_t)(8 * (i % 40));
        _PyRuntime[2] = 0;
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
