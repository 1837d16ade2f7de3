/*
 * Rules, compiled by the host into the shared memory. The first rule that applies and answers,
 * kills or passes ends the search; counts, delays and alterations continue to later rules.
 */
#include "block.h"

static int matches_pattern(const char *pattern, const char *text) {
    const char *star = NULL, *again = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = ++pattern;
            again = text;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star;
            text = ++again;
        } else {
            return 0;
        }
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

#define NOWHERE (~0ul - 4095) /* what the kernel finds no memory at */

static int is_address(struct block *block, u32 argument) { return shared->calls[block->call[0]].roles[3] == argument; }

/*
 * The string or the socket address at an argument, copied once a call: another thread may write
 * there before the kernel reads it. NULL: it is none that could be read; the kernel finds the same.
 */
static const char *judge(struct block *block, u32 argument, i32 *bytes) {
    u32 place = 0;
    while (place < MAX_JUDGED && block->judged[place].argument && block->judged[place].argument != argument + 1)
        place++;
    u64 *at = &block->call[1 + argument];
    const volatile struct capture *capture = &shared->calls[block->call[0]].arguments[argument];
    int is_string = capture->kind == CAPTURE_STRING;
    /* Buffers that a rule compares as text stay where they are. */
    if (place == MAX_JUDGED || !(is_string || is_address(block, argument))) {
        *bytes = copy_string(block->path, *at, sizeof block->path);
        return *bytes < 0 ? NULL : block->path;
    }
    struct judged *judged = &block->judged[place];
    char *copy = block->copies[place];
    if (!judged->argument || judged->value != *at) {
        judged->argument = argument + 1;
        judged->bytes = -EFAULT;
        u64 length = is_string ? 0 : block->call[1 + capture->length % 6];
        if (*at && is_string) judged->bytes = copy_string(copy, *at, sizeof block->copies[place]);
        /* The kernel takes 128 bytes at most, and says so. */
        else if (*at && length <= 128 && !copy_in(copy, *at, length)) judged->bytes = length;
        if (*at && (is_string || length <= 128)) *at = judged->bytes == -EFAULT ? NOWHERE : (u64)copy;
    }
    judged->value = *at;
    *bytes = judged->bytes;
    return judged->bytes < 0 ? NULL : copy;
}

const char *judged_path(struct block *block, u32 argument) {
    i32 bytes;
    const char *text = judge(block, argument, &bytes);
    u16 family = 0;
    if (!text || !is_address(block, argument)) return text;
    if (bytes > 2) memcpy(&family, text, 2);
    if (family != 1 /* AF_UNIX */) return NULL;
    memcpy(block->path, text + 2, bytes - 2);
    block->path[bytes - 2] = 0;
    if (!block->path[0]) block->path[0] = '@';
    return block->path;
}

static int matches_path(struct block *block, u32 argument, const char *pattern) {
    const char *text = judged_path(block, argument);
    return text && matches_pattern(pattern, text);
}

static int matches_fd(struct block *block, u64 fd, const char *pattern) {
    char name[40], *end = append_string(name, "/proc/self/fd/", sizeof name);
    append_number(end, (u32)fd);
    i64 n = SYS3(__NR_readlink, name, block->path, sizeof block->path - 1);
    if (n < 0) return 0;
    block->path[n] = 0;
    return matches_pattern(pattern, block->path);
}

static int matches_port(struct block *block, u32 argument, const struct condition *condition) {
    i32 bytes;
    const char *address = judge(block, argument, &bytes);
    u16 family;
    if (!address || bytes < 4) return 0;
    memcpy(&family, address, 2);
    if (family != 2 && family != 10) return 0;
    u64 port = (u8)address[2] << 8 | (u8)address[3];
    return port >= condition->low && port <= condition->high;
}

/* The argument that an index or role means; -1: the call has none. */
static i32 argument_of(struct block *block, u32 which) {
    if (!(which & ROLE_FLAG)) return which % 6;
    u8 index = shared->calls[block->call[0]].roles[which & 7];
    return index < 6 ? index : -1;
}

static int holds(struct block *block, const struct condition *condition) {
    i32 argument = argument_of(block, condition->argument);
    if (argument < 0) return condition->negated;
    u64 value = block->call[1 + argument];
    switch (condition->kind) {
    case CONDITION_RANGE: return value >= condition->low && value <= condition->high;
    case CONDITION_INT: return (i32)value >= (i64)condition->low && (i32)value <= (i64)condition->high;
    case CONDITION_BITS: return (value & condition->low) == condition->high;
    case CONDITION_STRING: return matches_path(block, argument, condition->pattern);
    case CONDITION_FD_PATH: return matches_fd(block, value, condition->pattern);
    case CONDITION_PORT: return matches_port(block, argument, condition);
    }
    return 0;
}

static int applies(struct block *block, struct rule *rule) {
    u64 number = block->call[0];
    if (!(rule->calls[number / 64] >> (number % 64) & 1)) return 0;
    if (rule->site && rule->site != block->stub->number) return 0;
    for (u32 i = 0; i < rule->condition_count && i < MAX_CONDITIONS; i++)
        if (holds(block, &rule->conditions[i]) == rule->conditions[i].negated) return 0;
    return 1;
}

/* xorshift64: the sequence of draws does not repeat, and needs no lock. */
static u32 draw(struct block *block) {
    block->random ^= block->random << 13;
    block->random ^= block->random >> 7;
    block->random ^= block->random << 17;
    return block->random >> 32;
}

/* Whether this match, the `n`-th (from 1), is one that the rule acts on. */
static int is_due(struct block *block, const struct rule *rule, u64 n) {
    if (n <= rule->skip) return 0;
    u64 due = n - rule->skip - 1, every = rule->every ? rule->every : 1;
    if (due % every) return 0;
    if (rule->times && due / every >= rule->times) return 0;
    return rule->chance == ~0u || draw(block) < rule->chance;
}

static void delay(struct block *block, i64 nanoseconds) {
    struct {
        i64 seconds, nanoseconds;
    } left = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    /* A signal ends the delay: it is delivered first, and the call is made anew. */
    while (!block->pending && SYS4(__NR_clock_nanosleep, 1 /* monotonic */, 0, &left, &left) == -EINTR) {
    }
}

/* What the executive itself makes of the call sees the register, the kernel sees `call`. */
static void replace_argument(struct block *block, u32 which, u64 value) {
    i32 argument = argument_of(block, which);
    if (argument >= 0) block->call[1 + argument] = value;
}

int policy(struct block *block) {
    u32 count = shared->rule_count < MAX_RULES ? shared->rule_count : MAX_RULES;
    for (u32 i = 0; i < count; i++) {
        struct rule *rule = (struct rule *)&shared->rules[i];
        if (!applies(block, rule)) continue;
        i64 result;
        u64 n = __atomic_add_fetch(&rule->matched, 1, __ATOMIC_RELAXED);
        if (block->undo_count < array_length(block->undo)) block->undo[block->undo_count++] = rule;
        if (!is_due(block, rule, n)) continue;
        __atomic_add_fetch(&rule->applied, 1, __ATOMIC_RELAXED);
        if (rule->action != ACTION_COUNT) trace_note(block, i, rule->action);
        switch (rule->action) {
        case ACTION_ANSWER: block->rax = rule->value; return ENTER_DONE;
        case ACTION_DELAY: delay(block, rule->value); break;
        case ACTION_KILL:
            set_kernel_action(rule->value, HANDLER_DEFAULT, 0, 0);
            SYS2(__NR_kill, block->pid, rule->value);
            break;
        case ACTION_ARGUMENT: replace_argument(block, rule->target, rule->value); break;
        case ACTION_STRING: replace_argument(block, rule->target, (u64)rule->text); break;
        case ACTION_PASS: return ENTER_KERNEL;
        case ACTION_ASK:
            block->rule = i;
            if (!ask_host(block, &result)) break;
            block->rax = result;
            return ENTER_DONE;
        }
    }
    return ENTER_KERNEL;
}

void policy_undo(struct block *block) {
    for (u32 i = 0; i < block->undo_count; i++) __atomic_sub_fetch(&block->undo[i]->matched, 1, __ATOMIC_RELAXED);
    block->undo_count = 0;
}
