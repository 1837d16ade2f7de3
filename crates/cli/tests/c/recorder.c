/* In place of librmk_section: prints `+name` and `-name.exit` of each mark that calls it, and no
 * lines of sources. Of marks that are inline it prints at the end `=name` with the count of
 * entries and of each exit. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char names[126][64];
static int known;

/* A slot of the record: crates/watch/section/src/layout.rs. */
static struct {
    uint32_t tid, unused[15];
    struct {
        uint32_t seq, exits[7];
    } cells[126];
} slot;

int rmk_section(const char *name)
{
    const char *of = strstr(name, " in "), *kind = strchr(name, ' ');
    snprintf(names[known], sizeof names[0], "%.*s-%s", (int)(of - kind - 1), kind + 1, of + 4);
    return known++;
}

int rmk_section_enter(int section)
{
    printf("+%s ", names[section]);
    return 1;
}

void rmk_section_leave(int section, int exit)
{
    printf("-%s.%d ", names[section], exit);
}

void *rmk_section_slot(void **cached)
{
    return *cached = &slot;
}

__attribute__((destructor)) static void counts(void)
{
    for (int nth = 0; nth < known; nth++) {
        if (slot.cells[nth].seq == 0)
            continue;
        printf("\n=%s %u", names[nth], slot.cells[nth].seq);
        for (int exit = 0; exit < 7; exit++)
            printf(" %u", slot.cells[nth].exits[exit]);
    }
}
