/* Questions for the host: one place in the shared memory each, and a wait of bounded length. */
#include "block.h"

/* The first string argument, for the host's convenience. */
static void put_path(struct block *block, volatile struct question *question) {
    char path[256];
    u8 index = block->call[0] < MAX_CALLS ? shared->calls[block->call[0]].roles[0] : NO_ARGUMENT;
    path[0] = 0;
    const char *judged = index < 6 ? judged_path(block, index) : NULL;
    if (judged) append_string(path, judged, sizeof path);
    memcpy((void *)question->path, path, sizeof path);
}

/*
 * Takes a free place; `*state` is its new state, with a number that no earlier question here had.
 */
static volatile struct question *claim(u32 *state) {
    for (u32 i = 0; i < QUESTIONS; i++) {
        volatile struct question *question = &extension->questions[i];
        u32 seen = question->state;
        *state = (seen & ~3u) + 4 + QUESTION_FILLING;
        if ((seen & 3) == QUESTION_FREE &&
            __atomic_compare_exchange_n(&question->state, &seen, *state, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return question;
    }
    return NULL;
}

static u64 monotonic(void) {
    u64 at[2] = {0};
    SYS2(__NR_clock_gettime, 1, at);
    return at[0] * 1000000000 + at[1];
}

static int unanswered(void) {
    count_stat(STAT_UNANSWERED);
    if (options & OPTION_ASK_KILL) die("a question about a call had no answer, and such processes are killed", "", 0);
    return 0;
}

/*
 * Whether the host answered with a result; else the call passes. A signal ends the wait: the call
 * is begun anew.
 */
int ask_host(struct block *block, i64 *result) {
    u32 state;
    volatile struct question *question = claim(&state);
    count_stat(STAT_ASKED);
    if (!question) return unanswered();
    question->tid = block->tid;
    question->pid = block->pid;
    question->rule = block->rule;
    question->number = block->call[0];
    for (u32 i = 0; i < 6; i++) question->arguments[i] = block->call[1 + i];
    question->site = block->stub->site;
    for (u32 i = 0; i < QUESTION_REGISTERS; i++) question->registers[i] = (&block->rax)[i];
    put_path(block, question);
    u32 asked = (state & ~3u) + QUESTION_ASKED;
    __atomic_store_n(&question->state, asked, __ATOMIC_RELEASE);
    __atomic_add_fetch(&shared->bell, 1, __ATOMIC_RELEASE);
    SYS3(__NR_futex, &shared->bell, 1 /* FUTEX_WAKE, shared */, 0x7fffffff);
    u64 end = monotonic() + shared->ask_limit;
    u32 seen, verdict = 0, has_answer;
    while ((seen = __atomic_load_n(&question->state, __ATOMIC_ACQUIRE)) == asked) {
        u64 now = monotonic(), left = end - now;
        if (now >= end || block->pending) break;
        u64 wait[2] = {left / 1000000000, left % 1000000000};
        SYS4(__NR_futex, &question->state, 0 /* FUTEX_WAIT, shared */, asked, wait);
    }
    if (seen == (state & ~3u) + QUESTION_ANSWERED) {
        verdict = question->verdict;
        *result = question->result;
        has_answer = verdict != 2;
    } else {
        has_answer = block->pending;
    }
    /* The host writes an answer only where it can change ASKED to ANSWERED. */
    __atomic_store_n(&question->state, (state & ~3u) + QUESTION_FREE, __ATOMIC_RELEASE);
    return has_answer ? verdict == 1 : unanswered();
}
