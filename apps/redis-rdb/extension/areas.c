/* The areas of a save: the regions of the heap, and the data of the program. */
#define _GNU_SOURCE
#include "rdb.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <unistd.h>

struct range {
    uintptr_t start, end;
};

/* The program's segments, and its object and its function of these names. */
static uintptr_t program_start, program_end, data_start, data_end;
static struct range server, rdb_save_background;

static struct orbit_area **areas; /* the program's data first, then regions in order */
static size_t count, capacity;

static int note_program(struct dl_phdr_info *info, size_t size, void *unused)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), read_only_end = 0;
    (void)size, (void)unused;
    program_start = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + p->p_vaddr, end = start + p->p_memsz;
        if (p->p_type == PT_GNU_RELRO)
            read_only_end = end & ~(page - 1);
        if (p->p_type != PT_LOAD)
            continue;
        program_start = start < program_start ? start : program_start;
        program_end = end > program_end ? end : program_end;
        if (p->p_flags & PF_W) {
            data_start = start & ~(page - 1);
            data_end = (end + page - 1) & ~(page - 1);
        }
    }
    if (read_only_end > data_start)
        data_start = read_only_end;
    /* The first object is the program. */
    return 1;
}

static bool add(void *start, size_t size)
{
    struct orbit_area *area;
    if (count == capacity) {
        size_t more = capacity ? 2 * capacity : 64;
        struct orbit_area **grown = realloc(areas, more * sizeof *grown);
        if (!grown)
            return false;
        areas = grown;
        capacity = more;
    }
    area = orbit_area_adopt(start, size);
    if (!area)
        return false;
    areas[count++] = area;
    return true;
}

/* Empty if the program does not export it. */
static struct range range_of(const char *name)
{
    void *there = dlsym(RTLD_DEFAULT, name);
    const ElfW(Sym) *symbol = NULL;
    Dl_info where;
    if (!there || !dladdr1(there, &where, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
        return (struct range){0, 0};
    return (struct range){(uintptr_t)there, (uintptr_t)there + symbol->st_size};
}

static bool is_in(struct range range, const void *address)
{
    return (uintptr_t)address >= range.start && (uintptr_t)address < range.end;
}

bool areas_init(void)
{
    size_t number;
    dl_iterate_phdr(note_program, NULL);
    server = range_of("server");
    rdb_save_background = range_of("rdbSaveBackground");
    return add((void *)data_start, data_end - data_start) && areas_now(&number) != NULL;
}

struct orbit_area *const *areas_now(size_t *number)
{
    const struct orbit_jemalloc_region *regions;
    size_t all = arena_regions(&regions);
    while (count - 1 < all)
        if (!add(regions[count - 1].start, regions[count - 1].size))
            return NULL;
    *number = count;
    return areas;
}

uint64_t areas_size(void)
{
    const struct orbit_jemalloc_region *regions;
    size_t all = arena_regions(&regions);
    uint64_t size = data_end - data_start;
    for (size_t i = 0; i < all; i++)
        size += regions[i].size;
    return size;
}

bool is_in_program(const void *address)
{
    return (uintptr_t)address >= program_start && (uintptr_t)address < program_end;
}

bool is_in_server(const void *address)
{
    return is_in(server, address);
}

bool is_in_background_save(const void *address)
{
    /* Behind a call. */
    return is_in(rdb_save_background, (const char *)address - 1);
}
