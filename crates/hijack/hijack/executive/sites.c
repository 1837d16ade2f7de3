/*
 * Stubs. A site's first call comes by SIGSYS and makes its stub; later ones come by SIGSYS again,
 * or by the jump that `rewrite` put there. Stubs of unmapped code are free again. Where the table
 * is full, calls at further sites come by SIGSYS for good, and have their thread's spare stub. A
 * stub counts the call and makes it with the guest's registers live, or enters the executive where
 * `call_flags` says so.
 */
#include "block.h"

#define MAX_STUBS 8192
#define STUBS_ADDRESS 0x1f0001000000ul
#define STUBS_AT_ONCE 512 /* that are mapped */
#define BUCKETS (MAX_STUBS * 2)

static struct stub *const stubs = (struct stub *)STUBS_ADDRESS;
static u32 stub_count HOT;     /* stubs at and above were never used */
static u32 free_stubs HOT;     /* 1-based index of the first; 0: none */
static u32 site_count HOT;
static u16 buckets[BUCKETS];   /* 1-based index; 0: empty */
static u64 lowest HOT, highest HOT; /* of all sites */
static volatile u32 owner HOT; /* tid of the thread that holds the lock */
u8 call_flags[MAX_CALLS] HOT;

void lock_sites(void) {
    u32 me = this_block()->tid;
    for (u32 spins = 1;; spins++) {
        u32 holder = 0;
        if (__atomic_compare_exchange_n(&owner, &holder, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
        __asm__ volatile("pause");
        if (spins % 1024) continue;
        /* A vfork child shares the lock, and may be killed while it holds it. */
        if (SYS2(__NR_tkill, holder, 0) == -ESRCH)
            __atomic_compare_exchange_n(&owner, &holder, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        SYS0(__NR_sched_yield);
    }
}

void unlock_sites(void) { __atomic_store_n(&owner, 0, __ATOMIC_RELEASE); }

struct stub *stub_at(u64 address) {
    if (address < (u64)stubs || address >= (u64)(stubs + MAX_STUBS)) return NULL;
    return (struct stub *)(address & ~127ul);
}

static u8 *emit(u8 *at, const void *bytes, u32 count) {
    memcpy(at, bytes, count);
    return at + count;
}

static u8 *emit_relative(u8 *at, const char *opcode, u32 count, u64 target) {
    at = emit(at, opcode, count);
    u32 distance = (u32)(target - (u64)(at + 4));
    return emit(at, &distance, 4);
}

static void fill(struct stub *stub, u64 site, u32 number) {
    u64 self = (u64)stub;
    u32 counts = B_COUNTS;
    u8 *at = stub->code;
    at = emit_relative(at, "\x48\x8d\x0d", 3, (u64)call_flags); /* lea call_flags(%rip), %rcx */
    at = emit(at, "\x80\x3c\x01\x00", 4);                       /* cmpb $0, (%rcx, %rax) */
    at = emit_relative(at, "\x0f\x85", 2, (u64)slow_entry);     /* jne slow_entry */
    at = emit(at, "\x65\x48\x8b\x0c\x25", 5);                   /* STUB_PASSED: mov %gs:B_COUNTS, %rcx */
    at = emit(at, &counts, 4);
    at = emit(at, "\x48\xff\x04\xc1", 4);             /* incq (%rcx, %rax, 8) */
    at = emit(at, "\x0f\x05", 2);                     /* STUB_SYSCALL: syscall */
    at = emit(at, "\x31\xc9", 2);                     /* xor %ecx, %ecx: no guest gets an address of ours */
    at = emit_relative(at, "\xff\x25", 2, (u64)&stub->back); /* jmp *back(%rip) */
    at = emit(at, "\x49\xbb", 2);                     /* STUB_ENTRY: mov $stub, %r11 */
    at = emit(at, &self, 8);
    at = emit(at, "\x48\x3d\xff\x01\x00\x00", 6);     /* cmp $511, %rax */
    at = emit_relative(at, "\x0f\x87", 2, (u64)slow_entry); /* ja slow_entry */
    emit(at, "\xeb\xc0", 2);                          /* jmp code */
    stub->site = site;
    stub->back = site + 2;
    stub->number = number;
    stub->hits = 0;
    stub->state = STUB_NEW;
}

/* Neighbours stay neighbours: a small program touches few pages of the table. */
static u32 home_of(u64 site) { return (site >> 9) % BUCKETS; }

/* Where the site's stub is in the table, or would be. The lock is held. */
static u32 bucket_of(u64 site) {
    u32 bucket = home_of(site);
    while (buckets[bucket] && stubs[buckets[bucket] - 1].site != site) bucket = (bucket + 1) % BUCKETS;
    return bucket;
}

int is_new_site(u64 site) {
    u32 index = buckets[bucket_of(site)];
    return !index || stubs[index - 1].state == STUB_NEW || stubs[index - 1].state == STUB_GONE;
}

/* A stub that was never used; -1: there is none, or no memory for it. */
static i64 fresh_stub(void) {
    if (stub_count == MAX_STUBS) return -1;
    u64 at = (u64)&stubs[stub_count], bytes = STUBS_AT_ONCE * sizeof(struct stub);
    if (stub_count % STUBS_AT_ONCE == 0 &&
        SYS6(__NR_mmap, at, bytes, PROT_READ | PROT_WRITE | PROT_EXEC,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != (i64)at)
        return -1;
    return stub_count++;
}

/* The site's stub, made if there is none; NULL: the table is full. The lock is held. */
static struct stub *find_stub(u64 site) {
    u32 bucket = bucket_of(site);
    if (buckets[bucket]) {
        struct stub *known = &stubs[buckets[bucket] - 1];
        if (known->state == STUB_GONE) known->state = STUB_NEW;
        return known;
    }
    i64 index = free_stubs ? free_stubs - 1 : fresh_stub();
    if (index < 0) return NULL;
    struct stub *stub = &stubs[index];
    if (free_stubs) free_stubs = stub->next_free;
    fill(stub, site, ++site_count);
    buckets[bucket] = index + 1;
    if (site < lowest || !lowest) lowest = site;
    if (site > highest) highest = site;
    count_stat(STAT_SITES);
    return stub;
}

struct stub *stub_of_site(u64 site, u64 number) {
    lock_sites();
    struct stub *stub = find_stub(site);
    if (!stub) {
        unlock_sites();
        count_stat(STAT_CROWDED);
        stub = &this_block()->spare;
        stub->site = site;
        stub->back = site + 2;
        stub->number = ~0u;
        return stub;
    }
    if (stub->state == STUB_NEW) hint_site(site, number);
    if (++stub->hits >= shared->threshold && stub->state == STUB_NEW && !(options & OPTION_NO_REWRITE))
        rewrite(stub, number);
    unlock_sites();
    return stub;
}

void rewrite_early(u64 site, u64 number) {
    if (stub_count >= MAX_STUBS / 2) return;
    struct stub *stub = find_stub(site);
    if (stub && stub->state == STUB_NEW) rewrite(stub, number);
}

void reset_sites(u64 address, u64 bytes, int is_unmapped) {
    forget_code(address, bytes);
    if (address > highest || address + bytes <= lowest) return;
    lock_sites();
    for (u32 i = 0; i < stub_count; i++)
        if (stubs[i].site - address < bytes) stubs[i].state = is_unmapped ? STUB_GONE : STUB_NEW, stubs[i].hits = 0;
    unlock_sites();
}

/* Takes a site out of the table: those behind it that it was in the way of move up. */
static void remove_bucket(u32 hole) {
    for (u32 at = (hole + 1) % BUCKETS; buckets[at]; at = (at + 1) % BUCKETS) {
        u32 home = home_of(stubs[buckets[at] - 1].site);
        if ((at + BUCKETS - home) % BUCKETS < (at + BUCKETS - hole) % BUCKETS) continue;
        buckets[hole] = buckets[at];
        hole = at;
    }
    buckets[hole] = 0;
}

void free_sites(u64 address, u64 bytes) {
    if (address > highest || address + bytes <= lowest) return;
    lock_sites();
    for (u32 i = 0; i < stub_count; i++) {
        if (stubs[i].state != STUB_GONE || stubs[i].site - address >= bytes) continue;
        remove_bucket(bucket_of(stubs[i].site));
        stubs[i].state = STUB_LEFT;
        stubs[i].site = 0;
        stubs[i].next_free = free_stubs;
        free_stubs = i + 1;
    }
    unlock_sites();
}
