/*
 * Sites that cost signals in one process are rewritten at once in the next that maps the same file:
 * the files and the places of such sites are in the shared memory. A fork's children inherit what
 * their parent rewrites just before it.
 *
 * Guests can write that memory: a hint says only where to try. What `rewrite` checks at a site it
 * checks here too.
 */
#include "block.h"

#define WORTH 4 /* calls by signal, of all processes, from which a site is rewritten before its first call */

#define REACH 512 /* what is rewritten for a site is nearer */

static u32 applied HOT; /* hint_generation when all ranges were last checked */
static u32 is_off HOT;

void use_hints(int on) { is_off = !on || (options & OPTION_NO_REWRITE); }

u64 identity(i64 file) {
    u64 about[18]; /* struct stat: device, inode; ctime at 104 */
    if (SYS2(__NR_fstat, file, about)) return 0;
    u64 key = about[1] * 0x9e3779b97f4a7c15ul ^ about[0] * 0xc2b2ae3d27d4eb4ful ^ about[13] << 32 ^ about[14];
    return key ? key : 1;
}

/* The file's place in the table, made if `make`; NULL: there is none. */
static volatile struct hinted_file *find_file(u64 file, int make) {
    for (u32 i = 0; i < HINTED_FILES; i++) {
        u64 seen = extension->hinted[i];
        if (!seen && make &&
            __atomic_compare_exchange_n(&extension->hinted[i], &seen, file, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            seen = file;
        if (seen == file) return &extension->hinted_files[i];
        if (!seen) break;
    }
    return NULL;
}

void hint(u64 file, u64 offset, u64 number) {
    if (is_off || !file || offset >> 32 || number >= MAX_CALLS) return;
    volatile struct hinted_file *found = find_file(file, 1);
    if (!found) return;
    for (u32 i = 0; i < HINTED_SITES; i++) {
        volatile struct hinted_site *site = &found->sites[i];
        /* Two threads may take one place: then one of the hints is lost until the next call. */
        if (!site->offset) site->offset = offset, site->number = number;
        if (site->offset != offset) continue;
        if (site->number == number && site->calls < WORTH && ++site->calls == WORTH)
            __atomic_add_fetch(&extension->hint_generation, 1, __ATOMIC_RELEASE);
        return;
    }
}

void apply_hints(u64 begin, u64 end, u64 file, u64 offset) {
    if (is_off || !file) return;
    volatile struct hinted_file *found = find_file(file, 0);
    if (!found) return;
    u64 sites[HINTED_SITES], numbers[HINTED_SITES], low = ~0ul, high = 0;
    u32 count = 0;
    lock_sites();
    for (u32 i = 0; i < HINTED_SITES && found->sites[i].offset; i++) {
        u64 site = begin + found->sites[i].offset - offset, number = found->sites[i].number;
        if (found->sites[i].calls < WORTH || site < begin + 16 || site + 16 > end || number >= MAX_CALLS) continue;
        if (*(const u8 *)site != 0x0f || ((const u8 *)site)[1] != 0x05 || !is_new_site(site)) continue;
        sites[count] = site;
        numbers[count++] = number;
        if (site < low) low = site;
        if (site > high) high = site;
    }
    if (count && open_code(low - REACH, high + REACH, begin, end)) {
        for (u32 i = 0; i < count; i++) rewrite_early(sites[i], numbers[i]);
        close_code();
    }
    unlock_sites();
}

void apply_new_hints(void) {
    u32 generation = __atomic_load_n(&extension->hint_generation, __ATOMIC_ACQUIRE);
    if (is_off || generation == applied) return;
    applied = generation;
    each_range(apply_hints);
}
