/* Has the form of a Python interpreter whose structures are rubbish: rubbish VERSION cycle|random
 * SEED. Or, of version 3.12, as large as can be ("large"): many threads with deep stacks of one
 * function, which has long names and a long table of lines. */
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

#define THREADS 250
#define FRAMES 500
static struct { uint64_t unused, next, a[5], frame, b[24]; } threads[THREADS];
static struct { uint64_t code, previous, a[6], owner; } frames[FRAMES];
static struct { uint64_t a[8], first, b[5], file, c, name, lines; } code;
static struct { uint64_t a[2], length, b, state, c[2]; uint32_t letters[1024]; } text;
static struct { uint64_t a[2], size, b; unsigned char entries[1 << 16]; } lines;

static void be_large(void)
{
    static uint64_t top;
    top = (uint64_t)&frames[0];
    for (int i = 0; i < THREADS; i++) {
        threads[i].next = i + 1 < THREADS ? (uint64_t)&threads[i + 1] : 0;
        threads[i].frame = (uint64_t)&top;
    }
    for (int i = 0; i < FRAMES; i++) {
        frames[i].code = (uint64_t)&code;
        frames[i].previous = i + 1 < FRAMES ? (uint64_t)&frames[i + 1] : 0;
    }
    code.file = code.name = (uint64_t)&text;
    code.lines = (uint64_t)&lines;
    text.length = 1024;
    text.state = 4 << 2 | 32;
    for (int i = 0; i < 1024; i++) text.letters[i] = 0x1f600;
    lines.size = sizeof lines.entries;
    memset(lines.entries, 0x80, sizeof lines.entries);
    _PyRuntime[5] = (uint64_t)&_PyRuntime[64];
    _PyRuntime[64 + 9] = (uint64_t)threads;
}

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
    if (!strcmp(argv[2], "large")) {
        memset(_PyRuntime, 0, sizeof _PyRuntime);
        be_large();
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
