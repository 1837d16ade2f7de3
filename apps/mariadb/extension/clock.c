/* The time that the server reads in the plugin's thread. InnoDB renews what innodb_trx and
 * innodb_lock_waits show 100 ms after the last reading, by the monotonic clock. So for each of its
 * readings the plugin's thread, and no other, reads that clock as a day or two ahead, in turn: it
 * is never within 100 ms of the last reading, also not for a thread that reads next by the right
 * time.
 *
 * The server calls clock_gettime through its linkage table, where this function stands in.
 */
#include "plugin.h"

#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define DAY_S (24 * 60 * 60)

typedef int (*reader)(clockid_t, struct timespec *);

static reader *slot; /* in the server's linkage table; NULL: not found */
static reader before;
static _Thread_local time_t ahead_s;
static time_t last_ahead_s = DAY_S; /* the plugin's thread only */

static int read_clock(clockid_t clock, struct timespec *now)
{
    int error = before(clock, now);
    if (error == 0 && clock == CLOCK_MONOTONIC)
        now->tv_sec += ahead_s;
    return error;
}

/* The slot of this function, among the relocations of the program, which is the first object. */
static int find_slot(struct dl_phdr_info *info, size_t size, void *name)
{
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Rela) *relocations = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    size_t bytes = 0;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_JMPREL)
            relocations = (const void *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_PLTRELSZ)
            bytes = dynamic->d_un.d_val;
        else if (dynamic->d_tag == DT_SYMTAB)
            symbols = (const void *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_STRTAB)
            strings = (const void *)dynamic->d_un.d_ptr;
    }
    for (size_t i = 0; relocations && symbols && strings && i < bytes / sizeof *relocations; i++)
        if (strcmp(strings + symbols[ELF64_R_SYM(relocations[i].r_info)].st_name, name) == 0)
            slot = (reader *)(info->dlpi_addr + relocations[i].r_offset);
    return 1;
}

/* The table is read-only once the server has started. */
static bool set(reader function)
{
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)slot & ~(size - 1));
    if (mprotect(page, size, PROT_READ | PROT_WRITE) != 0)
        return false;
    __atomic_store_n(slot, function, __ATOMIC_RELEASE);
    mprotect(page, size, PROT_READ);
    return true;
}

bool clock_start(void)
{
    dl_iterate_phdr(find_slot, "clock_gettime");
    if (!slot)
        return false;
    before = *slot;
    if (!set(read_clock))
        slot = NULL;
    return slot != NULL;
}

void clock_stop(void)
{
    if (slot)
        set(before);
    slot = NULL;
}

void clock_set_ahead(bool is_ahead)
{
    if (is_ahead)
        last_ahead_s = last_ahead_s == DAY_S ? 2 * DAY_S : DAY_S;
    ahead_s = is_ahead && slot ? last_ahead_s : 0;
}
