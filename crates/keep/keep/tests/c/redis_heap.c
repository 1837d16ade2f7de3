/* A module for Redis with a bug: HEAP.FREED follows a pointer in a block that it has freed,
 * after another block has been written there. It names what it needs of Redis' interface for
 * modules itself. */
#include <stdlib.h>

struct item { long *count; };

static int (*reply)(void *context, long long value);
static long counts;

static int freed(void *context, void **words, int count)
{
    struct item *volatile item = malloc(sizeof *item);
    (void)words;
    (void)count;
    item->count = &counts;
    free(item);
    long *other = malloc(sizeof *item);
    *other = 0x4141414141414141;
    __asm__ volatile("" : : "r"(other) : "memory");
    ++*item->count;
    free(other);
    return reply(context, counts);
}

int RedisModule_OnLoad(void *context, void **words, int count)
{
    int (*find)(const char *name, void *function) = ((int (**)(const char *, void *))context)[0];
    void (*name)(void *context, const char *name, int version, int interface);
    int (*command)(void *context, const char *name, int (*run)(void *, void **, int), const char *flags, int first, int last, int step);
    (void)words;
    (void)count;
    if (find("RedisModule_SetModuleAttribs", &name) || find("RedisModule_CreateCommand", &command) ||
        find("RedisModule_ReplyWithLongLong", &reply))
        return 1;
    name(context, "heap", 1, 1);
    return command(context, "heap.freed", freed, "", 0, 0, 0);
}
