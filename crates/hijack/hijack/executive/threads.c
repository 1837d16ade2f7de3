/*
 * Threads and processes. A block is taken before the clone, with all signals blocked; the child
 * finds its gs base set by its first instruction, arms dispatch, and only then runs guest code.
 */
#include "block.h"

#define BLOCKS_ADDRESS 0x1f2000000000ul

/* What is known of each block, apart from the blocks, so that a search touches few pages. */
struct owner {
    volatile u32 busy;
    u32 tid;                    /* 0: the thread has not begun */
    struct action_table *table; /* its */
    u32 is_kept;                /* a vfork child's: its parent frees it */
    u32 is_mapped;              /* the block has memory */
};

#define NEAR_TABLES 2
#define TABLES_ADDRESS 0x1f2800000000ul
#define TABLE_BYTES 4096ul
_Static_assert(sizeof(struct action_table) <= TABLE_BYTES, "a table has a page");

static struct block *const blocks = (struct block *)(BLOCKS_ADDRESS + FIRST_STACK);
static u32 block_limit HOT;       /* blocks at and above were never used */
static u32 table_limit HOT;       /* tables at and above were never used */
static struct action_table near_tables[NEAR_TABLES] HOT; /* of nearly all processes */
static struct owner owners[MAX_THREADS] HOT_LAST;
static u8 own_selector = 1; /* block calls from outside the executive, for good */

static struct action_table *table_at(u32 index) {
    return index < NEAR_TABLES ? &near_tables[index] : (struct action_table *)(TABLES_ADDRESS + index * TABLE_BYTES);
}

int map_own(u64 address, u64 bytes) {
    i64 at = SYS6(__NR_mmap, address, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == (i64)address) SYS3(__NR_madvise, address, bytes, MADV_DONTDUMP);
    return at == (i64)address || at == -EEXIST;
}

struct action_table *new_table(void) {
    for (u32 i = 0; i < MAX_THREADS; i++) {
        u32 none = 0;
        struct action_table *table = table_at(i);
        if (i >= NEAR_TABLES && i >= table_limit && !map_own((u64)table, TABLE_BYTES)) return NULL;
        if (!table->users &&
            __atomic_compare_exchange_n(&table->users, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            if (table_limit <= i) table_limit = i + 1;
            return table;
        }
    }
    return NULL;
}

void free_table(struct action_table *table) {
    if (table) __atomic_sub_fetch(&table->users, 1, __ATOMIC_ACQ_REL);
}

/* Threads that were killed did not free their blocks. */
static void reclaim_blocks(void) {
    for (u32 i = 0; i < block_limit; i++) {
        if (!owners[i].busy || !owners[i].tid || owners[i].is_kept || SYS2(__NR_tkill, owners[i].tid, 0) != -ESRCH)
            continue;
        owners[i].tid = 0;
        free_table(owners[i].table);
        drop_filters(blocks[i].filters);
        owners[i].busy = 0;
    }
}

struct block *new_block(void) {
    for (u32 attempt = 0; attempt < 2; attempt++) {
        for (u32 i = 0; i < MAX_THREADS; i++) {
            u32 none = 0;
            if (owners[i].busy ||
                !__atomic_compare_exchange_n(&owners[i].busy, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
                continue;
            if (!owners[i].is_mapped) {
                owners[i].is_mapped = map_own(BLOCKS_ADDRESS + i * sizeof(struct block), sizeof(struct block));
                if (!owners[i].is_mapped) {
                    owners[i].busy = 0;
                    return NULL;
                }
            }
            struct block *block = &blocks[i];
            block->self = (u64)block;
            block->stack_top = (u64)block;
            block->index = i;
            block->pid = 0;
            block->pending = block->restarted = block->traced = block->undo_count = 0;
            block->slot = NULL;
            block->counts = shared->counts;
            owners[i].tid = 0;
            owners[i].is_kept = 0;
            block->extra = block->extra_bytes = 0;
            block->object_sp = 0;
            block->stepping = 0;
            block->timer = -1;
            block->wait_began = 0;
            block->spins = MAX_SPINS;
            block->waits = 1;
            block->contexts = NULL;
            block->filters = block->fresh = NULL;
            u32 limit = block_limit;
            while (limit <= i &&
                   !__atomic_compare_exchange_n(&block_limit, &limit, i + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            }
            return block;
        }
        reclaim_blocks();
    }
    return NULL;
}

int shares_memory(u64 tid) {
    for (u32 i = 0; i < block_limit; i++)
        if (owners[i].busy && tid && owners[i].tid == tid) return 1;
    return 0;
}

void each_thread(struct block *block, void (*use)(struct block *thread, struct block *block)) {
    for (u32 i = 0; i < block_limit; i++)
        if (owners[i].busy && i != block->index && blocks[i].pid == block->pid) use(&blocks[i], block);
}

int is_only_thread(void) {
    u32 busy = 0;
    for (u32 i = 0; i < block_limit; i++) busy += owners[i].busy;
    return busy == 1;
}

void free_block(struct block *block) {
    free_table(block->table);
    drop_filters(block->filters);
    owners[block->index].busy = 0;
}

/* Who this thread is, known to it only. */
static void identify(struct block *block) {
    block->tid = SYS0(__NR_gettid);
    block->pid = SYS0(__NR_getpid);
    owners[block->index].table = block->table;
    owners[block->index].tid = block->tid;
}

void make_first_block(void) {
    struct block *first = new_block();
    if (!first) die("no memory for the first thread", "", 0);
    first->table = new_table();
    __asm__ volatile("wrgsbase %0" ::"r"(first));
    identify(first);
}

void arm(struct block *block) {
    struct alternate_stack stack = {(u64)block->signal_stack, 0, 0, STACK_BYTES};
    SYS2(__NR_sigaltstack, &stack, NULL);
    i64 result = SYS5(__NR_prctl, PR_SET_SYSCALL_USER_DISPATCH, 1, executive_start, executive_end - executive_start,
                      &own_selector);
    if (result)
        die("this kernel or container refuses Syscall User Dispatch (Linux 5.11; see `orbit doctor`)", "", result);
}

/* First C code of a thread or process, on its own block and stack, all signals blocked. */
void child_start(struct block *block) {
    u64 flags = block->child_flags;
    if (!(flags & CLONE_VM)) {
        unlock_sites();
        for (u32 i = 0; i < block_limit; i++)
            if (i != block->index) owners[i].busy = 0;
        for (u32 i = 0; i < table_limit; i++)
            if (table_at(i) != block->table) table_at(i)->users = 0;
        block->table->users = 1;
    }
    identify(block);
    if (flags & CLONE_CLEAR_SIGHAND) {
        for (u32 i = 1; i <= SIGNAL_LIMIT; i++)
            if (block->table->actions[i].handler > HANDLER_IGNORE)
                memset(&block->table->actions[i], 0, sizeof(struct action));
        catch_dispatch();
        if (has_object) catch_faults();
    }
    if (!(flags & CLONE_THREAD)) begin_process(block, 0);
    if ((flags & CLONE_VM) && !(flags & CLONE_VFORK)) block->alternate = (struct alternate_stack){0, 0, 0, 0};
    open_slot(block, block->parent_tid, flags & CLONE_THREAD ? 0 : 1);
    arm(block);
    block->rax = 0;
    u64 mask = block->child_mask & ~bit(SIGSYS);
    SYS4(__NR_rt_sigprocmask, SIG_SETMASK, &mask, NULL, 8);
}

i64 clone_thread(struct block *block, i64 number) {
    u64 arguments[6] = {block->call[1], block->call[2], block->call[3], block->call[4], block->call[5], block->call[6]};
    u64 flags = 0, stack = 0;
    struct clone_args request;
    if (number == __NR_clone) {
        flags = (u32)block->call[1]; /* the kernel takes 32 of its bits */
        stack = block->call[2];
    } else if (number == __NR_vfork) {
        flags = CLONE_VM | CLONE_VFORK;
    } else if (number == __NR_clone3) {
        u64 bytes = block->call[2] < sizeof request ? block->call[2] : sizeof request;
        memset(&request, 0, sizeof request);
        if (copy_in(&request, block->call[1], bytes)) return -EFAULT;
        flags = request.flags;
        if (request.stack) stack = request.stack + request.stack_size;
    }
    count_stat(STAT_CLONES);
    u64 all = ALL_SIGNALS, before;
    SYS4(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before, 8);
    if (block->pending) {
        /* A signal came first, and the mask before it is in its frame. The kernel would restart
         * the call. */
        struct frame *frame = (struct frame *)(block->deferred + 56);
        before = frame->context.mask;
    }
    struct block *child = new_block();
    if (!child) {
        SYS4(__NR_rt_sigprocmask, SIG_SETMASK, block->pending ? &all : &before, NULL, 8);
        return -EAGAIN;
    }
    memcpy(&child->rax, &block->rax, offset_of(struct block, pending) - offset_of(struct block, rax));
    child->child_mask = before;
    child->child_flags = flags;
    child->parent_tid = block->tid;
    child->process = block->process;
    child->sys_blocked = block->sys_blocked;
    /* Another thread may install a filter for all threads, of which this is one from here on. */
    lock_sites();
    if (flags & CLONE_THREAD) child->pid = block->pid;
    child->filters = share_filters(block->filters);
    unlock_sites();
    child->alternate = block->alternate;
    child->rip = block->stub->back;
    if (stack) child->rsp = stack;
    if (flags & CLONE_SIGHAND) {
        child->table = block->table;
        __atomic_add_fetch(&child->table->users, 1, __ATOMIC_ACQ_REL);
    } else {
        child->table = new_table();
        if (!child->table) {
            free_block(child);
            SYS4(__NR_rt_sigprocmask, SIG_SETMASK, block->pending ? &all : &before, NULL, 8);
            return -EAGAIN;
        }
        memcpy(child->table->actions, block->table->actions, sizeof child->table->actions);
    }
    owners[child->index].is_kept = (flags & CLONE_VM) && (flags & CLONE_VFORK);
    /* A copied address space must hold no lock of a thread that it does not hold. */
    if (!(flags & CLONE_VM)) apply_new_hints(), lock_sites();
    i64 result = make_thread(number, arguments, child);
    if (!(flags & CLONE_VM)) unlock_sites();
    /* The parent of a process keeps no block for it; a vfork child has gone by now. */
    if (is_error(result) || !(flags & CLONE_VM) || (flags & CLONE_VFORK)) {
        if (child->extra) SYS2(__NR_munmap, child->extra, child->extra_bytes);
        free_block(child);
    }
    SYS4(__NR_rt_sigprocmask, SIG_SETMASK, block->pending ? &all : &before, NULL, 8);
    return result;
}

void exit_thread(struct block *block, u64 status) {
    u64 all = ALL_SIGNALS;
    SYS4(__NR_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
    close_slot(block);
    free_contexts(block);
    volatile u32 unused;
    if (owners[block->index].is_kept) end_thread(status, &unused);
    owners[block->index].tid = 0;
    free_table(block->table);
    drop_filters(block->filters);
    end_thread(status, &owners[block->index].busy);
}
