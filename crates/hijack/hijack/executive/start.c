/*
 * The beginning of every guest: attach the shared memory, resolve scripts, map program and
 * interpreter, lay out the stack that the kernel would have made, arm dispatch, jump.
 */
#include "block.h"

#define MAX_SCRIPTS 5
#define HWCAP2_FSGSBASE 2

/* Of no use once the guest runs. */
u8 first_stack[32768] __attribute__((section(".first,\"aw\",@nobits#"), aligned(4096)));
char session_id[48];
u64 kept, executive_key;

/* What follows argv[3] of the executive is the guest's; scripts put words in front of it. */
struct words {
    char *before[3 * MAX_SCRIPTS];
    u32 before_count;
    char **rest;
    u64 rest_count;
};

static u64 number_of(const char *text) {
    u64 value = 0;
    while (*text >= '0' && *text <= '9') value = value * 10 + (*text++ - '0');
    return value;
}

/* What begins with the next comma. */
static const char *next_part(const char *text) {
    if (*text) text++;
    while (*text && *text != ',') text++;
    return text;
}

/*
 * What cannot attach the session's memory would run without rules: it does not run. `id`: the
 * first of the kept descriptors, a plus sign for those who want the other, then what the executive
 * is known by.
 */
static void attach(const char *id) {
    u32 fails_open = 0;
    u64 about[18] = {0}; /* struct stat, whose size is at 48 */
    for (const char *at = id; *at; at++) {
        fails_open |= *at == '+';
        if (*at == ':') executive_key = number_of(at + 1);
    }
    append_string(session_id, id, sizeof session_id);
    kept = number_of(id);
    i64 at = SYS2(__NR_fstat, kept, about);
    u64 bytes = about[6];
    if (!at && bytes >= RINGS_OFFSET && bytes <= SHARED_BYTES)
        at = SYS6(__NR_mmap, SHARED_ADDRESS, OBJECT_OFFSET, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
                  kept, 0);
    if (at != SHARED_ADDRESS && !fails_open)
        die("the session's shared memory cannot be attached (its descriptor is gone, or there is no address space "
            "for it), and a program without its rules does not run (--fail-open: it does)",
            "", at);
    if (at != SHARED_ADDRESS) {
        at = SYS6(__NR_mmap, SHARED_ADDRESS, OBJECT_OFFSET, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (at != SHARED_ADDRESS) die("cannot map the shared memory", "", at);
        shared->version = ABI_VERSION;
        shared->threshold = 1;
    }
    /* No part of a core. */
    SYS3(__NR_madvise, SHARED_ADDRESS, OBJECT_OFFSET, MADV_DONTDUMP);
    if (shared->version != ABI_VERSION) die("the host and the executive are of different versions", "", 0);
}

/* Which calls leave the short way. */
static void set_flags(void) {
    static const u16 numbers[] = {
        __NR_rt_sigaction,
        __NR_rt_sigprocmask,
        __NR_rt_sigreturn,
        __NR_rt_sigsuspend,
        __NR_sigaltstack,
        __NR_ppoll,
        __NR_pselect6,
        __NR_epoll_pwait,
        __NR_epoll_pwait2,
        __NR_clone,
        __NR_fork,
        __NR_vfork,
        __NR_clone3,
        __NR_execve,
        __NR_execveat,
        __NR_exit,
        __NR_readlink,
        __NR_readlinkat,
        __NR_open,
        __NR_openat,
        __NR_openat2,
        __NR_creat,
        __NR_munmap,
        __NR_mprotect,
        __NR_pkey_mprotect,
        __NR_madvise,
        __NR_remap_file_pages,
        __NR_mmap,
        __NR_mremap,
        __NR_shmat,
        __NR_readv,
        __NR_preadv,
        __NR_preadv2,
        __NR_vmsplice,
        __NR_recvmsg,
        __NR_recvmmsg,
        __NR_process_vm_readv,
        __NR_io_submit,
        __NR_ioctl,
        __NR_close,
        __NR_close_range,
        __NR_dup,
        __NR_dup2,
        __NR_dup3,
        __NR_fcntl,
        __NR_getdents64,
        __NR_process_vm_writev,
        __NR_process_madvise,
        __NR_ptrace,
        __NR_prctl,
        __NR_seccomp,
        __NR_arch_prctl,
        __NR_io_uring_setup,
        462,
    };
    static const u16 clock_numbers[] = {
        __NR_clock_gettime, __NR_gettimeofday,    __NR_time,
        __NR_nanosleep,     __NR_clock_nanosleep, __NR_poll,
        __NR_epoll_wait,    __NR_rt_sigtimedwait, __NR_select,
        __NR_futex,         __NR_timerfd_settime, __NR_timer_settime,
        __NR_setitimer,     __NR_alarm,           __NR_semtimedop,
        __NR_recvmmsg,      __NR_mq_timedsend,    __NR_mq_timedreceive,
        __NR_futex_waitv,   __NR_setsockopt,      __NR_timer_gettime,
        __NR_getitimer,     __NR_timerfd_gettime, __NR_times,
        __NR_sysinfo,       __NR_adjtimex,        __NR_clock_adjtime,
    };
    options = shared->options;
    if (!shared->speed_per) options &= ~OPTION_VIRTUAL_TIME;
    for (u32 i = 0; i < MAX_CALLS; i++)
        call_flags[i] = (options & OPTION_TRACE ? FLAG_TRACE : 0) | (options & OPTION_SAVE_ALL ? FLAG_SAVE : 0) |
                        (call_widths[i].pointers ? FLAG_POINTERS : 0);
    if (!(options & OPTION_TRACE)) call_flags[__NR_exit_group] |= FLAG_SPECIAL;
    for (u32 i = 0; i < array_length(numbers); i++) call_flags[numbers[i]] |= FLAG_SPECIAL;
    if (options & OPTION_VIRTUAL_TIME)
        for (u32 i = 0; i < array_length(clock_numbers); i++) call_flags[clock_numbers[i]] |= FLAG_SPECIAL;
    u32 rules = shared->rule_count < MAX_RULES ? shared->rule_count : MAX_RULES;
    int names_site = 0;
    for (u32 rule = 0; rule < rules; rule++) names_site |= shared->rules[rule].site != 0;
    /* Sites are numbered by their first calls by signal. */
    use_hints(!names_site);
    for (u32 rule = 0; rule < rules; rule++)
        for (u32 i = 0; i < MAX_CALLS; i++)
            if (shared->rules[rule].calls[i / 64] >> (i % 64) & 1) call_flags[i] |= FLAG_POLICY;
}

/* Follows `#!` lines to a program; returns its descriptor. */
static i64 resolve(i64 file, char *name, struct words *words) {
    static char lines[MAX_SCRIPTS][258];
    for (u32 depth = 0; depth < MAX_SCRIPTS; depth++) {
        char *line = lines[depth];
        i64 n = SYS4(__NR_pread64, file, line, 256, 0);
        if (n < 2 || line[0] != '#' || line[1] != '!') return file;
        line[n] = 0;
        char *argument, *interpreter = script_line(line + 2, &argument);
        /* argv: interpreter, [argument], script, then what followed argv[0]. */
        char *old[3 * MAX_SCRIPTS];
        u32 old_count = words->before_count, count = 0;
        memcpy(old, words->before, sizeof old);
        words->before[count++] = interpreter;
        if (argument) words->before[count++] = argument;
        words->before[count++] = name;
        for (u32 i = 1; i < old_count && count < array_length(words->before); i++) words->before[count++] = old[i];
        words->before_count = count;
        if (!depth && words->rest_count) words->rest++, words->rest_count--;
        SYS1(__NR_close, file);
        name = interpreter;
        file = SYS3(__NR_open, interpreter, O_RDONLY | O_CLOEXEC, 0);
        if (is_error(file)) die("cannot open the interpreter ", interpreter, file);
    }
    die("too many levels of scripts", "", 0);
}

static void set_executable(i64 file) {
    char name[40], *end = append_string(name, "/proc/self/fd/", sizeof name);
    append_number(end, file);
    i64 n = SYS3(__NR_readlink, name, executable, sizeof executable - 1);
    executable[n > 0 ? n : 0] = 0;
}

#define S_ISUID 04000
#define S_ISGID_RUN 02010

/* On exec of a setuid program the kernel changes user and group; the executive cannot, and counts
 * how often. */
static void count_rights(i64 file) {
    u32 about[36]; /* struct stat: mode at 24, user, group */
    if (SYS2(__NR_fstat, file, about)) return;
    u32 mode = about[6];
    int user = (mode & S_ISUID) && about[7] != (u32)SYS0(__NR_geteuid);
    int group = (mode & S_ISGID_RUN) == S_ISGID_RUN && about[8] != (u32)SYS0(__NR_getegid);
    if (user || group) count_stat(STAT_SETUID);
}

/* Programs that read code of files as data, and would translate our jumps, run without them. */
static void spare_translators(const char *path) {
    static const char *const names[] = {"valgrind", "memcheck-", "callgrind-", "cachegrind-", "helgrind-",
                                        "massif-",  "dhat-",     "drd-",       "none-amd64-", "drrun"};
    const char *name = path;
    for (; *path; path++)
        if (*path == '/') name = path + 1;
    for (u32 i = 0; i < array_length(names); i++)
        if (!memcmp(name, names[i], string_length(names[i]))) options |= OPTION_NO_REWRITE, use_hints(0);
}

static void set_thread_name(const char *path) {
    const char *name = path;
    for (; *path; path++)
        if (*path == '/') name = path + 1;
    SYS2(__NR_prctl, PR_SET_NAME, name);
}

/* Signals that are ignored stay so over exec. `known`: ",MASK" of them, by an executive that
 * execs; else empty. */
static void read_actions(struct action_table *table, const char *known) {
    if (*known) {
        u64 ignored = number_of(known + 1);
        for (u32 signal = 1; signal <= SIGNAL_LIMIT; signal++)
            if (ignored & bit(signal)) table->actions[signal].handler = HANDLER_IGNORE;
        return;
    }
    for (u32 signal = 1; signal <= SIGNAL_LIMIT; signal++) {
        struct action action;
        if (!SYS4(__NR_rt_sigaction, signal, NULL, &action, 8) && action.handler == HANDLER_IGNORE)
            table->actions[signal].handler = HANDLER_IGNORE;
    }
}

/*
 * What /proc shows of the process: the guest's arguments, environment and auxiliary vector, not the
 * executive's. Needs no right, and where the kernel has it not, nothing else depends on it.
 */
static void show_guest(const char *first, const char *last, char **environment, const u64 *vector, u64 pairs,
                       u64 stack) {
    u64 brk = SYS1(__NR_brk, 0), arguments_end = (u64)last + string_length(last) + 1, environment_end = arguments_end;
    u64 environment_start = *environment ? (u64)*environment : arguments_end;
    for (char **each = environment; *each; each++) environment_end = (u64)*each + string_length(*each) + 1;
    struct prctl_mm_map map = {
        .start_code = (u64)executive_start,
        .end_code = (u64)executive_end,
        .start_data = (u64)executive_start,
        .end_data = (u64)executive_start,
        .start_brk = brk,
        .brk = brk,
        .start_stack = stack,
        .arg_start = (u64)first,
        .arg_end = arguments_end,
        .env_start = environment_start,
        .env_end = environment_end,
        .auxv = (void *)vector,
        .auxv_size = pairs * 16,
        .exe_fd = ~0u,
    };
    SYS5(__NR_prctl, PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0);
}

/* A script's arguments in one piece, as the kernel lays them out. Returns where they begin. */
static char *join(struct words *words, char **argv, char *end) {
    u64 bytes = 0;
    for (u32 i = 0; i < words->before_count; i++) bytes += string_length(words->before[i]) + 1;
    for (u64 i = 0; i < words->rest_count; i++) bytes += string_length(words->rest[i]) + 1;
    char *begin = end - bytes, *at = begin;
    for (u64 i = 0; i < words->before_count + words->rest_count; i++) {
        const char *from = i < words->before_count ? words->before[i] : words->rest[i - words->before_count];
        u64 length = string_length(from) + 1;
        argv[i] = memcpy(at, from, length);
        at += length;
    }
    return begin;
}

static u64 altered(u64 type, u64 value, const struct image *image, const char *name) {
    switch (type) {
    case 3 /* AT_PHDR */: return image->headers;
    case 5 /* AT_PHNUM */: return image->header_count;
    case 7 /* AT_BASE */: return image->base;
    case 9 /* AT_ENTRY */: return image->entry;
    case 31 /* AT_EXECFN */: return (u64)name;
    }
    return value;
}

void start(u64 *sp) {
    u64 argc = sp[0];
    char **argv = (char **)(sp + 1), **environment = argv + argc + 1;
    if (argc < 5) die("this program is started by `orbit hijack`", "", 0);
    u64 *auxiliary = (u64 *)environment;
    while (*auxiliary) auxiliary++;
    auxiliary++;
    u64 pairs = 0, hwcap2 = 0;
    for (;; pairs++) {
        if (auxiliary[pairs * 2] == 26 /* AT_HWCAP2 */) hwcap2 = auxiliary[pairs * 2 + 1];
        if (!auxiliary[pairs * 2]) break;
    }
    pairs++;
    if (!(hwcap2 & HWCAP2_FSGSBASE))
        die("this kernel or processor does not offer the gs base to programs (FSGSBASE, Linux 5.9)", "", 0);
    attach(argv[1]);
    set_flags();
    make_first_block();
    struct block *block = this_block();

    char *name = argv[3];
    struct words words = {.rest = argv + 4, .rest_count = argc - 4};
    i64 file = number_of(argv[2]);
    file = resolve(file, name, &words);
    count_rights(file);
    spare_translators(name);
    struct image image;
    load_program(file, &image);
    set_executable(file);
    SYS1(__NR_close, file);
    set_thread_name(name);
    u32 first = __atomic_exchange_n(&shared->first, 0, __ATOMIC_ACQ_REL);
    const char *known = next_part(argv[2]), *process = next_part(known), *filters = next_part(process);
    begin_process(block, *process ? number_of(process + 1) : 0);
    open_slot(block, 0, 2);
    if (first) block->counts[__NR_execve]++;
    if (options & OPTION_TRACE) trace_first_exec(block, (u64)(argv + 4), (u64)environment, name, first);

    u64 count = words.before_count + words.rest_count, environment_words = (u64 *)auxiliary - (u64 *)environment;
    u64 total = 1 + count + 1 + environment_words + pairs * 2;
    /* A script's words first, below what the kernel put there. */
    u64 top = (u64)sp;
    char **given = words.rest;
    if (words.before_count) {
        given = (char **)((top - count * 8) & ~15ul);
        top = (u64)join(&words, given, (char *)given);
    }
    u64 *stack = (u64 *)((top - total * 8) & ~15ul), *at = stack;
    *at++ = count;
    for (u64 i = 0; i < count; i++) *at++ = (u64)given[i];
    *at++ = 0;
    for (u64 i = 0; i < environment_words; i++) *at++ = (u64)environment[i];
    for (u64 i = 0; i < pairs; i++) {
        u64 type = auxiliary[i * 2], value = auxiliary[i * 2 + 1];
        if (type == 33 /* AT_SYSINFO_EHDR */ && (options & OPTION_VIRTUAL_TIME)) type = 1 /* AT_IGNORE */;
        *at++ = type;
        *at++ = altered(type, value, &image, name);
    }
    show_guest(given[0], given[count - 1], environment, at - pairs * 2, pairs, (u64)stack);

    read_actions(block->table, known);
    if (*filters) load_filters(block, number_of(filters + 1));
    block->alternate = (struct alternate_stack){0, 0, 0, 0};
    block->sys_blocked = 0;
    catch_dispatch();
    u64 mask = bit(SIGSYS);
    SYS4(__NR_rt_sigprocmask, SIG_UNBLOCK, &mask, NULL, 8);
    arm(block);
    load_object();
    begin_guest((u64)stack, image.start);
}
