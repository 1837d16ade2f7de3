/*
 * Records of calls, in a ring for each thread. The thread is the ring's only writer and publishes
 * whole records, so a thread that is killed leaves no half record. A full ring makes the thread
 * wait for the host, or drops and counts.
 */
#include "block.h"

#define WAIT_NS 20000000 /* between two checks whether the host is still there */

#define F_WRLCK 1
#define F_UNLCK 2

/* Sets or asks for the lock of a process: see `struct slot`. Returns its type. */
static i64 lock_of(u64 operation, u32 process) {
    struct {
        u16 type, whence;
        u32 pad;
        i64 start, length;
        i32 pid, pad1;
    } lock = {F_WRLCK, 0, 0, process, 1, 0, 0};
    SYS3(__NR_fcntl, kept, operation, &lock);
    return lock.type;
}

int host_is_alive(void) { return lock_of(F_GETLK, 0) != F_UNLCK; }

void begin_process(struct block *block, u32 known) {
    block->process = known ? known : __atomic_add_fetch(&shared->processes, 1, __ATOMIC_RELAXED);
    /* After exec too: threads that shared the descriptors may have had the lock. */
    if (options & OPTION_TRACE) lock_of(F_SETLK, block->process);
}

static u8 *ring_of(volatile struct slot *slot) {
    return (u8 *)(SHARED_ADDRESS + RINGS_OFFSET + (slot - shared->slots) * RING_BYTES);
}

static void ring_bell(void) {
    __atomic_add_fetch(&shared->bell, 1, __ATOMIC_RELEASE);
    SYS3(__NR_futex, &shared->bell, 1 /* FUTEX_WAKE, shared */, 1);
}

static void begin(struct block *block, u8 type) {
    struct record *record = (struct record *)block->record;
    *record = (struct record){0, type, 0, block->tid, time_stamp()};
    block->record_bytes = sizeof *record;
}

static void put(struct block *block, u64 value) {
    memcpy(block->record + block->record_bytes, &value, 8);
    block->record_bytes += 8;
}

/* Waits until the ring has room. 0: it has none, and the record is lost. */
static int wait_for_room(volatile struct slot *slot, u64 head, u64 bytes) {
    for (;;) {
        u64 tail = __atomic_load_n(&slot->tail, __ATOMIC_ACQUIRE);
        if (head - tail + bytes <= RING_BYTES) return 1;
        if ((options & OPTION_LOSSY) || !(options & OPTION_TRACE)) return 0;
        ring_bell();
        struct {
            i64 seconds, nanoseconds;
        } wait = {0, WAIT_NS};
        SYS4(__NR_futex, &slot->tail, 0 /* FUTEX_WAIT, shared */, (u32)tail, &wait);
        if (slot->tail == tail && !host_is_alive()) options &= ~OPTION_TRACE;
    }
}

/* Publishes the record that was built. */
static void finish(struct block *block) {
    volatile struct slot *slot = block->slot;
    u64 bytes = (block->record_bytes + 7) & ~7ul;
    /* Without its host nobody reads, and slots that are taken then have no ring. */
    if (!slot || !(options & OPTION_TRACE)) {
        count_stat(STAT_LOST);
        return;
    }
    ((struct record *)block->record)->size = bytes;
    u64 head = slot->head;
    if (head - slot->tail + bytes > RING_BYTES && !wait_for_room(slot, head, bytes)) {
        slot->lost++;
        return;
    }
    u8 *ring = ring_of(slot);
    u64 at = head % RING_BYTES, first = RING_BYTES - at < bytes ? RING_BYTES - at : bytes;
    memcpy(ring + at, block->record, first);
    memcpy(ring, block->record + first, bytes - first);
    /* The record must be there for whoever sees the new head. */
    __atomic_store_n(&slot->head, head + bytes, __ATOMIC_RELEASE);
    u64 used = head - slot->tail;
    if (used < RING_BYTES / 2 && used + bytes >= RING_BYTES / 2) ring_bell();
}

/* Begins a blob; returns where its bytes go, or NULL if no room is left for one of `want` bytes. */
static u8 *blob_place(struct block *block, u64 want) {
    u64 need = sizeof(struct blob) + ((want + 7) & ~7ul);
    return block->record_bytes + need <= MAX_RECORD ? block->record + block->record_bytes + sizeof(struct blob)
                                                    : NULL;
}

static void end_blob(struct block *block, u32 argument, u64 length, int cut) {
    struct blob *blob = (struct blob *)(block->record + block->record_bytes);
    *blob = (struct blob){argument, length, cut ? BLOB_CUT : 0};
    block->record_bytes += sizeof *blob + ((length + 7) & ~7ul);
}

static void put_string(struct block *block, u32 argument, u64 from, u64 limit) {
    u8 *to = blob_place(block, limit);
    if (!to || !from) return;
    i64 length = copy_string((char *)to, from, limit);
    if (length == -EFAULT) return;
    end_blob(block, argument, length < 0 ? limit : (u64)length, length < 0);
}

static void put_bytes(struct block *block, u32 argument, u64 from, u64 bytes, u64 limit) {
    u64 take = bytes < limit ? bytes : limit;
    u8 *to = blob_place(block, take);
    if (!to || !from) return;
    u64 got = copy_some(to, from, take);
    if (got == take) end_blob(block, argument, take, bytes > take);
}

static void put_vector(struct block *block, u32 argument, u64 from) {
    u64 pointer;
    for (u32 i = 0; i < 24 && from && !copy_in(&pointer, from + i * 8, 8) && pointer; i++)
        put_string(block, argument, pointer, 128);
}

static void put_iovec(struct block *block, u32 argument, u64 from, u64 entries, u64 limit) {
    u64 pair[2];
    for (u64 i = 0; i < entries && i < 4 && !copy_in(pair, from + i * sizeof pair, sizeof pair); i++)
        put_bytes(block, argument, pair[0], pair[1], limit);
}

void trace_entry(struct block *block) {
    const volatile struct call_description *call = &shared->calls[block->call[0]];
    begin(block, RECORD_ENTRY);
    for (u32 i = 0; i < 7; i++) put(block, block->call[i]);
    put(block, block->stub->site);
    for (u32 i = 0; i < 6; i++) {
        u64 value = block->call[1 + i], size = call->arguments[i].size,
            length = block->call[1 + call->arguments[i].length % 6];
        switch (call->arguments[i].kind) {
        case CAPTURE_STRING: put_string(block, i, value, size); break;
        case CAPTURE_BUFFER: put_bytes(block, i, value, length, size); break;
        case CAPTURE_FIXED: put_bytes(block, i, value, size, size); break;
        case CAPTURE_VECTOR: put_vector(block, i, value); break;
        case CAPTURE_IOVEC: put_iovec(block, i, value, length, size); break;
        }
    }
    block->traced = 1;
    finish(block);
}

void trace_exit(struct block *block) {
    if (!block->traced) return;
    block->traced = 0;
    const volatile struct call_description *call = &shared->calls[block->call[0] % MAX_CALLS];
    i64 result = block->rax;
    u64 given[6] = {block->rdi, block->rsi, block->rdx, block->r10, block->r8, block->r9};
    begin(block, RECORD_EXIT);
    put(block, result);
    for (u32 i = 0; i < 6 && !is_error(result); i++) {
        u64 size = call->arguments[i].size;
        i32 length;
        switch (call->arguments[i].kind) {
        case CAPTURE_OUT_RESULT: put_bytes(block, i, given[i], result, size); break;
        case CAPTURE_OUT_FIXED: put_bytes(block, i, given[i], size, size); break;
        case CAPTURE_OUT_LENGTH:
            if (!copy_in(&length, given[call->arguments[i].length % 6], 4) && length > 0)
                put_bytes(block, i, given[i], length, size);
            break;
        }
    }
    finish(block);
}

void trace_abort(struct block *block) {
    if (!block->traced) return;
    block->traced = 0;
    begin(block, RECORD_ABORT);
    finish(block);
}

void trace_signal(struct block *block, struct signal_info *info) {
    begin(block, RECORD_SIGNAL);
    put(block, info->number);
    put(block, info->code);
    put(block, info->value[0]);
    finish(block);
}

void trace_note(struct block *block, u64 rule, u64 action) {
    if (!(options & OPTION_TRACE)) return;
    begin(block, RECORD_NOTE);
    put(block, rule);
    put(block, action);
    finish(block);
}

void trace_first_exec(struct block *block, u64 arguments, u64 environment, const char *path, int first) {
    if (first) {
        begin(block, RECORD_ENTRY);
        put(block, __NR_execve);
        put(block, (u64)path);
        put(block, arguments);
        put(block, environment);
        for (u32 i = 0; i < 4; i++) put(block, 0);
        put_string(block, 0, (u64)path, 256);
        put_vector(block, 1, arguments);
        finish(block);
    }
    begin(block, RECORD_EXIT);
    put(block, 0);
    finish(block);
}

static u64 mapped_slots[MAX_SLOTS / 64] HOT;

/* Maps a part of the session's file that one thread has. */
static int map_part(u64 offset, u64 bytes) {
    u64 at = SHARED_ADDRESS + offset;
    return SYS6(__NR_mmap, at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, kept, offset) == (i64)at;
}

/* Whether counters and ring of a slot are there. */
static int map_slot(u64 index) {
    if (mapped_slots[index / 64] >> (index % 64) & 1) return 1;
    if (!map_part(COUNTS_OFFSET + index * COUNTS_BYTES, COUNTS_BYTES)) return 0;
    u64 ring = RINGS_OFFSET + index * RING_BYTES;
    if (options & OPTION_TRACE) {
        if (!map_part(ring, RING_BYTES)) return 0;
        SYS3(__NR_madvise, SHARED_ADDRESS + ring, RING_BYTES, MADV_DONTDUMP);
    }
    __atomic_or_fetch(&mapped_slots[index / 64], 1ul << (index % 64), __ATOMIC_RELAXED);
    return 1;
}

/* The slot of a thread that is its process' only one is taken over by what it becomes by exec. */
static volatile struct slot *claim(struct block *block) {
    u32 limit = shared->slot_limit < MAX_SLOTS ? shared->slot_limit : MAX_SLOTS;
    for (u32 i = 0; i < limit; i++)
        if (shared->slots[i].tid == block->tid && shared->slots[i].state == SLOT(SLOT_USED, block->process))
            return &shared->slots[i];
    for (u32 i = 0; i < MAX_SLOTS; i++) {
        volatile struct slot *slot = &shared->slots[i];
        u32 free = SLOT_FREE;
        if (slot->state != SLOT_FREE ||
            !__atomic_compare_exchange_n(&slot->state, &free, SLOT(SLOT_USED, block->process), 0, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        slot->tid = block->tid;
        u32 seen = shared->slot_limit;
        while (seen <= i && !__atomic_compare_exchange_n(&shared->slot_limit, &seen, i + 1, 0, __ATOMIC_ACQ_REL,
                                                         __ATOMIC_RELAXED)) {
        }
        return slot;
    }
    return NULL;
}

/* What is in a ring the host has yet to read; without a trace nobody reads it. */
static void end_slot(struct block *block, volatile struct slot *slot) {
    u32 state = options & OPTION_TRACE ? SLOT(SLOT_DONE, block->process) : SLOT_FREE;
    __atomic_store_n(&slot->state, state, __ATOMIC_RELEASE);
}

/* All slots of the process but the thread's own: the threads are gone, or about to be. */
static void end_others(struct block *block) {
    u32 limit = shared->slot_limit < MAX_SLOTS ? shared->slot_limit : MAX_SLOTS;
    for (u32 i = 0; i < limit; i++)
        if (&shared->slots[i] != block->slot && shared->slots[i].state == SLOT(SLOT_USED, block->process))
            end_slot(block, &shared->slots[i]);
}

static u32 threads_begun HOT;

/* What a thread draws is its own, and the same in each session with the same seed whose processes
 * and threads begin in the same order (splitmix64). */
static u64 seed_of(const struct block *block) {
    u64 thread = __atomic_add_fetch(&threads_begun, 1, __ATOMIC_RELAXED);
    u64 value = shared->seed + (((u64)block->process << 32) + thread) * 0x9e3779b97f4a7c15ul;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ul;
    value = (value ^ value >> 27) * 0x94d049bb133111ebul;
    return (value ^ value >> 31) | 1;
}

void open_slot(struct block *block, i64 parent, i64 kind) {
    block->random = seed_of(block);
    block->slot = claim(block);
    if (kind == 2) end_others(block);
    if (!block->slot) return;
    u64 index = block->slot - shared->slots;
    if (!map_slot(index)) {
        block->slot->state = SLOT_FREE;
        block->slot = NULL;
        return;
    }
    block->counts = (u64 *)(SHARED_ADDRESS + COUNTS_OFFSET + index * COUNTS_BYTES);
    block->slot->pid = block->pid;
    if (!(options & OPTION_TRACE)) return;
    begin(block, RECORD_START);
    put(block, block->pid);
    put(block, parent);
    put(block, kind);
    finish(block);
}

void close_slot(struct block *block) {
    if (block->slot) end_slot(block, block->slot);
    block->slot = NULL;
    block->counts = shared->counts;
}

void close_slots(struct block *block) {
    close_slot(block);
    /* Other threads may count a call or two more in a slot that is another's by then. */
    end_others(block);
}
