/*
 * Rewriting a site in place, so that its later calls cost no signal.
 *
 * - `mov $number, %eax; ...; syscall`: the mov becomes a jump to a *trampoline* within 2 GiB, which
 *   sets eax, has copies of the instructions between, and goes to the stub. Those and the syscall
 *   instruction stay, for jumps to them.
 * - Otherwise the syscall becomes a two-byte jump into the last five bytes of a long NOP, or of
 *   int3 padding, within 127 bytes; these bytes become the jump to the trampoline. The NOP stays a
 *   valid NOP of the same length. Where none is that near, the last two bytes of a shorter NOP
 *   become a jump on the way to one.
 * - Nothing behind the syscall instruction changes. Only private read-execute mappings of files are
 *   touched.
 *
 * Another thread may run the same bytes: each change is one store within one cache line, of bytes
 * that are either one instruction or never executed before the change. Only where no other thread
 * can run them (the process has none, or the code was mapped just now) a change may cross a cache
 * line.
 */
#include "block.h"

#define MAX_RANGES 64
#define MAX_PAGES 64
#define PAGE_BYTES 65536ul
#define TRAMPOLINE_BYTES 64
#define TRAMPOLINE_STUB 56 /* offset of the stub's address */
#define MAX_BETWEEN 24     /* bytes of the instructions between the mov and the syscall */

struct range {
    u64 begin, end;
    u64 file, offset; /* see know_code */
};
static struct range ranges[MAX_RANGES] HOT; /* code that may be rewritten; begin == end: unused */
static u32 next_range HOT;
static u64 lowest HOT, highest HOT; /* of all ranges */
static u64 open_begin HOT, open_end HOT; /* code that may be written now */
static volatile u32 fresh_for HOT;       /* tid of the thread that mapped code just now, of which nothing has run */
static struct {
    u64 base, used;
} pages[MAX_PAGES] HOT;
static u32 page_count HOT;
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

static u32 add_range(u64 begin, u64 end, u64 file, u64 offset) {
    u32 index = next_range++ % MAX_RANGES;
    ranges[index] = (struct range){begin, end, file, offset};
    if (begin < lowest || !lowest) lowest = begin;
    if (end > highest) highest = end;
    return index;
}

void know_code(u64 begin, u64 end, u64 file, u64 offset) {
    lock_sites();
    add_range(begin, end, file, offset);
    unlock_sites();
    fresh_for = this_block()->tid;
    apply_hints(begin, end, file, offset);
    fresh_for = 0;
}

void each_range(void (*use)(u64, u64, u64, u64)) {
    for (u32 i = 0; i < MAX_RANGES; i++) {
        struct range range = ranges[i];
        if (range.begin != range.end) use(range.begin, range.end, range.file, range.offset);
    }
}

void hint_site(u64 site, u64 number) {
    for (u32 i = 0; i < MAX_RANGES; i++)
        if (site >= ranges[i].begin + 16 && site + 16 <= ranges[i].end)
            return hint(ranges[i].file, site - ranges[i].begin + ranges[i].offset, number);
}

int open_code(u64 low, u64 high, u64 begin, u64 end) {
    low = low > begin ? low & ~4095ul : begin;
    high = high < end ? (high + 4095) & ~4095ul : end;
    if (SYS3(__NR_mprotect, low, high - low, PROT_READ | PROT_WRITE | PROT_EXEC)) return 0;
    open_begin = low;
    open_end = high;
    return 1;
}

void close_code(void) {
    SYS3(__NR_mprotect, open_begin, open_end - open_begin, PROT_READ | PROT_EXEC);
    open_begin = open_end = 0;
}

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
                found = add_range(begin, limit, 0, 0);
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
    if (address >= highest || address + bytes <= lowest) return;
    lock_sites();
    for (u32 i = 0; i < MAX_RANGES; i++)
        if (address < ranges[i].end && address + bytes > ranges[i].begin) ranges[i] = (struct range){0};
    unlock_sites();
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

/*
 * The mov and what follows it, if the site has one; then a jump to the stub, which needs no check
 * of the number after the mov alone.
 */
static void fill_trampoline(u8 *at, struct stub *stub, u32 copied) {
    /* What is between may alter the number. */
    u64 target = (u64)stub->code + (copied == 5 ? 0 : STUB_ENTRY), self = (u64)stub;
    stub->copied = copied;
    memcpy(at, (const u8 *)stub->site - copied, copied);
    memcpy(at + copied, "\x49\xbb", 2); /* mov $target, %r11 */
    memcpy(at + copied + 2, &target, 8);
    memcpy(at + copied + 10, "\x41\xff\xe3", 3); /* jmp *%r11 */
    memcpy(at + TRAMPOLINE_STUB, &self, 8);
}

u64 edge_of_trampoline(u64 address) {
    for (u32 i = 0; i < page_count; i++) {
        if (address < pages[i].base || address >= pages[i].base + PAGE_BYTES) continue;
        u64 at = address & ~(TRAMPOLINE_BYTES - 1ul);
        struct stub *stub = *(struct stub **)(at + TRAMPOLINE_STUB);
        /* Where the guest's own copy of the same instruction is. */
        u64 done = address - at;
        return stub->site - stub->copied + (done < stub->copied ? done : stub->copied);
    }
    return 0;
}

/*
 * Whether `count` bytes can be replaced: they lie in one cache line, or nobody else runs them; and
 * in one page.
 */
static int is_replaceable(u64 at, u32 count) {
    if ((at & 63) + count <= 64) return 1;
    return (at & 4095) + count <= 4096 && (fresh_for == this_block()->tid || is_only_thread());
}

/*
 * Replaces bytes by one store if they lie in one cache line. The page is read-execute before and
 * after.
 */
static int replace(u64 at, const void *bytes, u32 count) {
    if (!is_replaceable(at, count)) return 0;
    u64 page = at & ~4095ul;
    int is_open = at >= open_begin && at + 8 <= open_end;
    if (!is_open && SYS3(__NR_mprotect, page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) return 0;
    if ((at & 63) + count > 64) {
        memcpy((u8 *)at, bytes, count);
    } else {
        u64 word = (at & 63) > 56 ? (at & ~63ul) + 56 : at;
        u64 value = *(volatile u64 *)word;
        memcpy((u8 *)&value + (at - word), bytes, count);
        *(volatile u64 *)word = value;
    }
    if (!is_open) SYS3(__NR_mprotect, page, 4096, PROT_READ | PROT_EXEC);
    return 1;
}

static int jump_to(u64 at, u8 *trampoline) {
    u8 jump[5] = {0xe9};
    u32 distance = (u32)((u64)trampoline - (at + 5));
    memcpy(jump + 1, &distance, 4);
    return replace(at, jump, 5);
}

/*
 * Length of an instruction that does the same at another address: moves and arithmetic of
 * registers, constants, and memory that is not named by its distance. 0: it is another one.
 */
static u32 movable(const u8 *code) {
    const u8 *at = code;
    u32 rex = 0, constant = 0;
    if (*at == 0x64) at++;
    if ((*at & 0xf0) == 0x40) rex = *at++;
    u8 opcode = *at++;
    if ((opcode & 0xf8) == 0xb8) return rex & 8 ? 0 : at + 4 - code;
    switch (opcode) {
    case 0x01: case 0x03: case 0x09: case 0x0b: case 0x21: case 0x23: case 0x29: case 0x2b: case 0x31: case 0x33:
    case 0x39: case 0x3b: case 0x63: case 0x85: case 0x89: case 0x8b: case 0x8d: case 0xd1: break;
    case 0x80: case 0x83: case 0xc1: case 0xc6: constant = 1; break;
    case 0x81: case 0xc7: constant = 4; break;
    default: return 0;
    }
    u8 mode = *at >> 6, base = *at & 7;
    at++;
    if (mode != 3) {
        int is_indexed = base == 4;
        if (is_indexed) base = *at++ & 7;
        if (mode == 0 && base == 5) {
            if (!is_indexed) return 0; /* by its distance */
            mode = 2;
        }
        at += mode == 1 ? 1 : mode == 2 ? 4 : 0;
    }
    return at + constant - code;
}

/* Whether the bytes between are whole instructions, all movable. */
static int are_movable(const u8 *from, const u8 *to) {
    while (from < to) {
        u32 bytes = movable(from);
        if (!bytes) return 0;
        from += bytes;
    }
    return from == to;
}

static int rewrite_mov(struct stub *stub, struct range *range, u64 number) {
    u64 site = stub->site;
    for (u32 between = 0; between <= MAX_BETWEEN && site - between >= range->begin + 16; between++) {
        const u8 *mov = (const u8 *)site - between - 5;
        u32 value;
        if (*mov != 0xb8 || (mov[-1] & 0xf0) == 0x40) continue;
        memcpy(&value, mov + 1, 4);
        /*
         * The bytes may be the end of another instruction; then eax would differ in all likelihood.
         */
        if (value != number || number >= MAX_CALLS || !are_movable(mov + 5, (const u8 *)site)) continue;
        if (!is_replaceable((u64)mov, 5)) return 0;
        u8 *trampoline = new_trampoline(site);
        if (!trampoline) return 0;
        fill_trampoline(trampoline, stub, 5 + between);
        if (jump_to((u64)mov, trampoline)) return 1;
        free_last_trampoline(trampoline);
        return 0;
    }
    return 0;
}

/* Whether the five bytes at `at` are the last ones of an eight-byte NOP. */
static int is_nop_tail(u64 at) { return *(const u64 *)(at - 3) == 0x0000000000841f0ful; }

/*
 * Whether the five bytes at `at` end int3 padding of six bytes or more in front of an aligned
 * address. Padding follows code that does not run on: a return, a jump, a call that never returns,
 * ud2. Other such bytes may be data.
 */
static int is_padding_tail(u64 at) {
    const u8 *code = (const u8 *)at;
    if ((at + 5) & 15) return 0;
    for (i32 i = -1; i < 5; i++)
        if (code[i] != 0xcc) return 0;
    i32 first = -1;
    while (first > -11 && code[first - 1] == 0xcc) first--;
    const u8 *end = code + first;
    return end[-1] == 0xc3 || end[-2] == 0xeb || end[-5] == 0xe9 || end[-5] == 0xe8 ||
           (end[-2] == 0x0f && end[-1] == 0x0b);
}

/*
 * Whether the two bytes of the syscall instruction are probably also the constant of an instruction
 * that begins before them (mov, push and arithmetic with 32 bits), and somebody jumped into its
 * middle. That instruction must stay.
 */
static int is_part_of_another(u64 site) {
    const u8 *code = (const u8 *)site;
    for (i32 i = 1; i <= 3; i++)
        if ((code[-i] & 0xf8) == 0xb8) return 1;
    return code[-1] == 0x68 || code[-1] == 0x3d || code[-2] == 0x81 || code[-2] == 0xc7;
}

/* Whether the two bytes at `at` are the last ones of a NOP of five or six bytes. */
static int is_short_nop_tail(u64 at) {
    const u8 *code = (const u8 *)at - 3;
    return code[0] == 0x0f && code[1] == 0x1f && code[2] == 0x44 && !code[3] && !code[4];
}

/*
 * Puts a jump to the stub's trampoline within reach of a two-byte jump at `from`. Returns its
 * distance; 0: no room.
 */
static i64 place_jump(struct stub *stub, struct range *range, u64 from, u8 **trampoline) {
    u64 site = stub->site;
    for (i64 distance = -128; distance <= 127; distance++) {
        u64 at = from + 2 + distance;
        if (at < range->begin + 16 || at + 8 > range->end || !is_replaceable(at, 5)) continue;
        if (at < site + 2 && at + 5 > site) continue;
        if (!is_nop_tail(at) && !is_padding_tail(at)) continue;
        if (!*trampoline) {
            *trampoline = new_trampoline(site);
            if (!*trampoline) return 0;
            fill_trampoline(*trampoline, stub, 0);
        }
        if (jump_to(at, *trampoline)) return distance;
    }
    return 0;
}

static int short_jump(u64 at, i64 distance) {
    u8 jump[2] = {0xeb, (u8)distance};
    return replace(at, jump, 2);
}

static int rewrite_near(struct stub *stub, struct range *range) {
    u64 site = stub->site;
    if (!is_replaceable(site, 2) || is_part_of_another(site)) return 0;
    u8 *trampoline = NULL;
    i64 distance = place_jump(stub, range, site, &trampoline);
    if (distance) return short_jump(site, distance);
    for (i64 step = -128; step <= 127; step++) {
        u64 at = site + 2 + step;
        if (at < range->begin + 16 || at + 8 > range->end || !is_replaceable(at, 2) || !is_short_nop_tail(at))
            continue;
        distance = place_jump(stub, range, at, &trampoline);
        if (distance) return short_jump(at, distance) && short_jump(site, step);
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
