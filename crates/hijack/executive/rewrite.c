/*
 * Rewriting a site in place, so that its later calls cost no signal.
 *
 * - `mov $number, %eax; syscall`: the mov becomes a jump over both to a *trampoline* within 2 GiB, which sets eax and
 *   goes to the stub. The syscall instruction stays, for those who jump to it.
 * - Otherwise the syscall becomes a two-byte jump into the last five bytes of a long NOP, or of int3 padding, within
 *   127 bytes; these bytes become the jump to the trampoline. The NOP stays a valid NOP of the same length.
 * - Nothing behind the syscall instruction changes. Only private read-execute mappings of files are touched.
 *
 * Another thread may run the same bytes: each change is one store within one cache line, of bytes that are either one
 * instruction or never executed before the change.
 */
#include "block.h"

#define MAX_RANGES 64
#define MAX_PAGES 64
#define PAGE_BYTES 65536ul
#define TRAMPOLINE_BYTES 32

struct range {
    u64 begin, end;
};
static struct range ranges[MAX_RANGES]; /* code that may be rewritten; begin == end: unused */
static u32 next_range;
static struct {
    u64 base, used;
} pages[MAX_PAGES];
static u32 page_count;
static char maps[65536];

static u64 parse_hex(const char **at) {
    u64 value = 0;
    for (;; (*at)++) {
        char c = **at;
        if (c >= '0' && c <= '9') value = value * 16 + (c - '0');
        else if (c >= 'a' && c <= 'f') value = value * 16 + (c - 'a' + 10);
        else return value;
    }
}

void know_code(u64 begin, u64 end) { ranges[next_range++ % MAX_RANGES] = (struct range){begin, end}; }

/* Finds the private read-execute file mapping around `address`; -1 if there is none. */
static i32 find_range(u64 address) {
    for (u32 i = 0; i < MAX_RANGES; i++)
        if (address >= ranges[i].begin + 16 && address + 16 <= ranges[i].end) return i;
    i64 file = SYS3(__NR_open, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    if (is_error(file)) return -1;
    u64 have = 0;
    i32 found = -1;
    for (;;) {
        i64 n = SYS3(__NR_read, file, maps + have, sizeof maps - 1 - have);
        if (n <= 0) break;
        have += n;
        maps[have] = 0;
        /* Whole lines; what is left over moves to the front. */
        const char *at = maps;
        for (;;) {
            const char *end = at;
            while (*end && *end != '\n') end++;
            if (!*end) break;
            u64 begin = parse_hex(&at);
            at++;
            u64 limit = parse_hex(&at);
            int fits = at[1] == 'r' && at[2] == '-' && at[3] == 'x' && at[4] == 'p', is_file = 0;
            for (; at < end; at++) is_file |= *at == '/';
            if (address >= begin + 16 && address + 16 <= limit && fits && is_file && found < 0) {
                found = next_range % MAX_RANGES;
                know_code(begin, limit);
            }
            at = end + 1;
        }
        have = maps + have - at;
        memcpy(maps, at, have);
    }
    SYS1(__NR_close, file);
    return found;
}

void forget_code(u64 address, u64 bytes) {
    for (u32 i = 0; i < MAX_RANGES; i++)
        if (address < ranges[i].end && address + bytes > ranges[i].begin) ranges[i] = (struct range){0, 0};
}

static u8 *new_trampoline(u64 site) {
    for (u32 i = 0; i < page_count; i++) {
        i64 distance = pages[i].base - site;
        if (distance > -0x70000000l && distance < 0x70000000l && pages[i].used < PAGE_BYTES) {
            u8 *at = (u8 *)pages[i].base + pages[i].used;
            pages[i].used += TRAMPOLINE_BYTES;
            return at;
        }
    }
    if (page_count == MAX_PAGES) return NULL;
    for (i64 step = 1; step < 200; step++) {
        u64 hint = (site & ~0xfffful) + (step & 1 ? -1 : 1) * (step + 1) / 2 * 0x800000l;
        if ((i64)hint < 0x10000) continue;
        i64 at = SYS6(__NR_mmap, hint, PAGE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (at == (i64)hint) {
            pages[page_count].base = hint;
            pages[page_count++].used = 0;
            return new_trampoline(site);
        }
        if (!is_error(at)) SYS2(__NR_munmap, at, PAGE_BYTES);
    }
    return NULL;
}

static void free_last_trampoline(u8 *at) {
    for (u32 i = 0; i < page_count; i++)
        if ((u64)at + TRAMPOLINE_BYTES == pages[i].base + pages[i].used) pages[i].used -= TRAMPOLINE_BYTES;
}

/* With a mov: b8 imm32 ff25 0 stub. Without: ff25 0 stub. */
static void fill_trampoline(u8 *at, struct stub *stub, u32 number, int with_mov) {
    u64 target = (u64)stub;
    if (with_mov) {
        *at++ = 0xb8;
        memcpy(at, &number, 4);
        at += 4;
    }
    memcpy(at, "\xff\x25\0\0\0\0", 6);
    memcpy(at + 6, &target, 8);
}

u64 edge_of_trampoline(u64 address) {
    for (u32 i = 0; i < page_count; i++) {
        if (address < pages[i].base || address >= pages[i].base + PAGE_BYTES) continue;
        u8 *at = (u8 *)(address & ~(TRAMPOLINE_BYTES - 1ul));
        int with_mov = at[0] == 0xb8;
        struct stub *stub;
        memcpy(&stub, at + (with_mov ? 11 : 6), 8);
        /* Before the mov the guest has not set eax yet: it must do so again. */
        return with_mov && address == (u64)at ? stub->site - 5 : stub->site;
    }
    return 0;
}

/* Replaces `count` bytes by one store within one cache line. The page is read-execute before and after. */
static int replace(u64 at, const void *bytes, u32 count) {
    u64 word = at;
    if ((word & 63) > 56) word = (word & ~63ul) + 56;
    if (at + count > word + 8) return 0;
    u64 page = at & ~4095ul;
    if (SYS3(__NR_mprotect, page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) return 0;
    u64 value = *(volatile u64 *)word;
    memcpy((u8 *)&value + (at - word), bytes, count);
    *(volatile u64 *)word = value;
    SYS3(__NR_mprotect, page, 4096, PROT_READ | PROT_EXEC);
    return 1;
}

static int jump_to(u64 at, u8 *trampoline) {
    u8 jump[5] = {0xe9};
    u32 distance = (u32)((u64)trampoline - (at + 5));
    memcpy(jump + 1, &distance, 4);
    return replace(at, jump, 5);
}

static int rewrite_mov(struct stub *stub, struct range *range, u64 number) {
    u64 site = stub->site;
    const u8 *code = (const u8 *)site;
    u32 value;
    if (site < range->begin + 16 || code[-5] != 0xb8 || (code[-6] & 0xf0) == 0x40) return 0;
    memcpy(&value, code - 4, 4);
    /* The bytes may be the end of another instruction; then eax would differ in all likelihood. */
    if (value != number || number >= MAX_CALLS) return 0;
    if (((site - 5) & 63) > 59) return 0;
    u8 *trampoline = new_trampoline(site);
    if (!trampoline) return 0;
    fill_trampoline(trampoline, stub, value, 1);
    if (jump_to(site - 5, trampoline)) return 1;
    free_last_trampoline(trampoline);
    return 0;
}

/* Whether the five bytes at `at` are the last ones of an eight-byte NOP. */
static int is_nop_tail(u64 at) { return *(const u64 *)(at - 3) == 0x0000000000841f0ful; }

/*
 * Whether the five bytes at `at` end int3 padding of six bytes or more in front of an aligned address. Padding follows
 * code that does not run on: a return, a jump, a call that never returns, ud2. Other such bytes may be data.
 */
static int is_padding_tail(u64 at) {
    const u8 *code = (const u8 *)at;
    if ((at + 5) & 15) return 0;
    for (i32 i = -1; i < 5; i++)
        if (code[i] != 0xcc) return 0;
    i32 first = -1;
    while (first > -11 && code[first - 1] == 0xcc) first--;
    const u8 *end = code + first;
    return end[-1] == 0xc3 || end[-2] == 0xeb || end[-5] == 0xe9 || end[-5] == 0xe8 || (end[-2] == 0x0f && end[-1] == 0x0b);
}

/*
 * Whether the two bytes of the syscall instruction are probably also the constant of an instruction that begins before
 * them (mov, push and arithmetic with 32 bits), and somebody jumped into its middle. That instruction must stay.
 */
static int is_part_of_another(u64 site) {
    const u8 *code = (const u8 *)site;
    for (i32 i = 1; i <= 3; i++)
        if ((code[-i] & 0xf8) == 0xb8) return 1;
    return code[-1] == 0x68 || code[-1] == 0x3d || code[-2] == 0x81 || code[-2] == 0xc7;
}

static int rewrite_near(struct stub *stub, struct range *range) {
    u64 site = stub->site;
    if ((site & 63) == 63 || is_part_of_another(site)) return 0;
    u8 *trampoline = NULL;
    for (i64 distance = -128; distance <= 127; distance++) {
        u64 at = site + 2 + distance;
        if (at < range->begin + 16 || at + 8 > range->end || (at & 63) > 59) continue;
        if (at < site + 2 && at + 5 > site) continue;
        if (!is_nop_tail(at) && !is_padding_tail(at)) continue;
        if (!trampoline && !(trampoline = new_trampoline(site))) return 0;
        fill_trampoline(trampoline, stub, 0, 0);
        if (!jump_to(at, trampoline)) continue;
        u8 jump[2] = {0xeb, (u8)distance};
        return replace(site, jump, 2);
    }
    return 0;
}

void rewrite(struct stub *stub, u64 number) {
    stub->state = STUB_LEFT;
    i32 range = find_range(stub->site);
    if (range >= 0 && rewrite_mov(stub, &ranges[range], number)) {
        stub->state = STUB_REWRITTEN;
        count_stat(STAT_REWRITTEN_MOV);
    } else if (range >= 0 && rewrite_near(stub, &ranges[range])) {
        stub->state = STUB_REWRITTEN;
        count_stat(STAT_REWRITTEN_PAD);
    } else {
        count_stat(STAT_NOT_REWRITTEN);
    }
}
