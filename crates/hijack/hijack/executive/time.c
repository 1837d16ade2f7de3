/*
 * Virtual time: the clocks of guests run at a multiple of the real speed since the session began,
 * or stand still; time-outs and sleeps take as much less. Clocks that stand still show nothing but
 * waits: the monotonic ones are moved by each, or a program that asks whether it has slept for long
 * enough would sleep for ever. The real-time clock may jump, once. The vdso is hidden, so that
 * clock calls are system calls. CPU clocks stay real.
 */
#include "block.h"

#define NS 1000000000ul
#define SOL_SOCKET 1
#define SO_RCVTIMEO 20
#define SO_SNDTIMEO 21
#define TIMER_ABSTIME 1
#define FUTEX_CLOCK_REALTIME 256
#define AFTER_2001 (NS * 1000000000ul) /* only a real-time clock shows that much */
#define ITIMER_REAL 0 /* the others count CPU time */
#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1
#define CLOCK_REALTIME_COARSE 5
#define CLOCK_BOOTTIME 7
#define CLOCK_TAI 11
#define TICKS_A_SECOND 100 /* of times() */
#define STA_NANO 0x2000

/* value * numerator / denominator, over 128 bits; the quotient must fit in 64. */
static u64 scale(u64 value, u64 numerator, u64 denominator) {
    u64 low, high;
    __asm__("mulq %3" : "=a"(low), "=d"(high) : "a"(value), "r"(numerator));
    if (high >= denominator) return ~0ul >> 2;
    __asm__("divq %4" : "=a"(low), "=d"(high) : "a"(low), "d"(high), "r"(denominator));
    return low;
}

/* Of lengths of time. Clocks that stand still leave them as they are. */
static u64 shorter(u64 ns) { return shared->speed ? scale(ns, shared->speed_per, shared->speed) : ns; }
static u64 longer(u64 ns) { return shared->speed ? scale(ns, shared->speed, shared->speed_per) : ns; }

/* How far the guests' clocks have gone after `ns` of real time. */
static u64 gone(u64 ns) { return shared->speed ? longer(ns) : 0; }

static int is_virtual(u64 clock) {
    return clock <= CLOCK_MONOTONIC || (clock >= 4 && clock <= CLOCK_BOOTTIME) || clock == CLOCK_TAI;
}

/* The real-time clock, and what is set with it. */
static int is_of_day(u64 clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

static int jumps(u64 clock) { return shared->jump && is_of_day(clock); }

/* Real times before the base are not changed. */
static u64 to_virtual(u64 clock, u64 real) {
    u64 base = shared->time_base[clock];
    if (real <= base) return real;
    if (!shared->speed && !is_of_day(clock)) return base + shared->waited;
    return base + gone(real - base) + (jumps(clock) && real - base >= shared->jump_after ? shared->jump : 0);
}

static u64 real_now(u64 clock) {
    u64 at[2] = {0};
    SYS2(__NR_clock_gettime, clock, at);
    return at[0] * NS + at[1];
}

/*
 * When the guest's clock first shows `value` or more, on the kernel's clock. A clock that stands
 * still never does: then the wait lasts as long as the value is ahead.
 */
static u64 to_real(u64 clock, u64 value) {
    u64 base = shared->time_base[clock], jump = jumps(clock) ? shared->jump : 0, after = shared->jump_after;
    if (value <= base) return jump ? base : value;
    u64 before_jump = base + gone(after);
    if (jump && value > before_jump) {
        if ((i64)jump > 0 && value <= before_jump + jump) return base + after;
        if (shared->speed) value -= jump;
    }
    if (shared->speed) return base + shorter(value - base);
    u64 real = real_now(clock), shown = to_virtual(clock, real);
    return value <= shown ? base : real + (value - shown);
}

static u64 now(u64 clock) { return to_virtual(clock, real_now(clock)); }

/* Replaces the timespec (or, with `unit` 1000, the timeval) at argument `index` by an altered
 * copy in scratch. */
static void replace(struct block *block, u32 index, u64 unit, i64 clock, u32 place) {
    u64 *copy = &block->scratch[place], at[2];
    if (!block->call[index] || copy_in(at, block->call[index], sizeof at)) return;
    if ((i64)at[0] < 0 || at[0] > NS * 4 || at[1] * unit >= NS) return; /* the kernel says what is wrong */
    u64 ns = at[0] * NS + at[1] * unit, real = clock < 0 ? shorter(ns) : to_real(clock, ns);
    /* A sleep that was not zero does not become zero. */
    if (ns && real < unit) real = unit;
    copy[0] = real / NS;
    copy[1] = real % NS / unit;
    block->call[index] = (u64)copy;
}

/* A timer's (interval, value) at argument `index`. */
static void replace_timer(struct block *block, u32 index, u64 unit, int is_absolute) {
    u64 *copy = &block->scratch[4], at[4];
    if (!block->call[index] || copy_in(at, block->call[index], sizeof at)) return;
    for (u32 i = 0; i < 4; i += 2) {
        if ((i64)at[i] < 0 || at[i] > NS * 4 || at[i + 1] * unit >= NS) return;
        u64 ns = at[i] * NS + at[i + 1] * unit, real = shorter(ns);
        if (i == 2 && is_absolute) real = to_real(ns > AFTER_2001 ? CLOCK_REALTIME : CLOCK_MONOTONIC, ns);
        if (ns && real < unit) real = unit;
        copy[i] = real / NS;
        copy[i + 1] = real % NS / unit;
    }
    block->call[index] = (u64)copy;
}

static void replace_milliseconds(struct block *block, u32 index) {
    i32 given = (i32)block->call[index];
    if (given > 0) block->call[index] = (shorter(given * 1000000ul) + 999999) / 1000000;
}

static void replace_futex(struct block *block) {
    u64 operation = block->call[2] & 0x7f;
    if (operation == 0) replace(block, 4, 1, -1, 4);
    else if (operation == 9 || operation == 6 || operation == 11 || operation == 13)
        replace(block, 4, 1,
                operation == 6 || (block->call[2] & FUTEX_CLOCK_REALTIME) ? CLOCK_REALTIME : CLOCK_MONOTONIC, 4);
}

static int answer_pair(struct block *block, u64 to, u64 first, u64 second) {
    u64 pair[2] = {first, second};
    block->rax = to && copy_out(to, pair, sizeof pair) ? -EFAULT : 0;
    return ENTER_DONE;
}

/* alarm counts whole seconds, of which a fast clock makes hours: so the kernel's timer of the
 * same kind is set. */
static u64 set_alarm(u64 seconds) {
    u64 ns = shorter(seconds * NS), left;
    if (seconds && ns < 1000) ns = 1000;
    u64 timer[4] = {0, 0, ns / NS, ns % NS / 1000}, old[4] = {0};
    SYS3(__NR_setitimer, ITIMER_REAL, timer, old);
    left = longer(old[2] * NS + old[3] * 1000);
    /* As the kernel rounds, but never to 0 while it is set. */
    return left && left < NS ? 1 : (left + NS / 2) / NS;
}

/* Calls that may wait, where clocks stand still. */
static int waits(u64 number) {
    switch (number) {
    case __NR_nanosleep:
    case __NR_clock_nanosleep:
    case __NR_poll:
    case __NR_ppoll:
    case __NR_select:
    case __NR_pselect6:
    case __NR_epoll_wait:
    case __NR_epoll_pwait:
    case __NR_epoll_pwait2:
    case __NR_rt_sigtimedwait:
    case __NR_futex:
    case __NR_futex_waitv:
    case __NR_semtimedop:
    case __NR_recvmmsg:
    case __NR_mq_timedsend:
    case __NR_mq_timedreceive: return 1;
    }
    return 0;
}

/* A wait is over: the clocks show at least what they did at its begin, and its length. */
static void show_wait(struct block *block) {
    u64 shown = block->wait_shown + (real_now(CLOCK_MONOTONIC) - block->wait_began), seen = shared->waited;
    while (seen < shown && !__atomic_compare_exchange_n(&shared->waited, &seen, shown, 0, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
    block->wait_began = 0;
}

/* struct timex: the status at 40, the time at 72. */
static void adjust_timex(u64 to) {
    u32 status;
    u64 at[2];
    if (copy_in(&status, to + 40, sizeof status) || copy_in(at, to + 72, sizeof at)) return;
    u64 unit = status & STA_NANO ? 1 : 1000, ns = to_virtual(CLOCK_REALTIME, at[0] * NS + at[1] * unit);
    at[0] = ns / NS;
    at[1] = ns % NS / unit;
    copy_out(to + 72, at, sizeof at);
}

/* What times() returns counts from a moment that nobody knows: what has gone since then differs. */
static u64 virtual_ticks(u64 ticks) {
    u64 real = real_now(CLOCK_MONOTONIC), base = shared->time_base[CLOCK_MONOTONIC];
    u64 shown = to_virtual(CLOCK_MONOTONIC, real);
    return ticks - (real - base) / (NS / TICKS_A_SECOND) + (shown - base) / (NS / TICKS_A_SECOND);
}

int virtual_time(struct block *block) {
    u64 ns;
    if (!shared->speed && waits(block->call[0])) {
        block->wait_began = real_now(CLOCK_MONOTONIC);
        block->wait_shown = shared->waited;
    }
    switch (block->call[0]) {
    case __NR_clock_gettime:
        if (!is_virtual(block->call[1])) return ENTER_KERNEL;
        ns = now(block->call[1]);
        return answer_pair(block, block->call[2], ns / NS, ns % NS);
    case __NR_gettimeofday:
        if (block->call[2]) return ENTER_KERNEL;
        ns = now(CLOCK_REALTIME);
        return answer_pair(block, block->call[1], ns / NS, ns % NS / 1000);
    case __NR_time:
        ns = now(CLOCK_REALTIME) / NS;
        block->rax = block->call[1] && copy_out(block->call[1], &ns, 8) ? (u64)-EFAULT : ns;
        return ENTER_DONE;
    case __NR_nanosleep: replace(block, 1, 1, -1, 4); break;
    case __NR_clock_nanosleep:
        if (is_virtual(block->call[1]))
            replace(block, 3, 1, block->call[2] & TIMER_ABSTIME ? (i64)block->call[1] : -1, 4);
        break;
    case __NR_poll: replace_milliseconds(block, 3); break;
    case __NR_epoll_wait:
    case __NR_epoll_pwait: replace_milliseconds(block, 4); break;
    case __NR_epoll_pwait2: replace(block, 4, 1, -1, 4); break;
    case __NR_ppoll:
    case __NR_rt_sigtimedwait: replace(block, 3, 1, -1, 4); break;
    case __NR_pselect6: replace(block, 5, 1, -1, 4); break;
    case __NR_select: replace(block, 5, 1000, -1, 4); break;
    case __NR_futex: replace_futex(block); break;
    case __NR_timerfd_settime:
    case __NR_timer_settime: replace_timer(block, 3, 1, block->call[2] & TIMER_ABSTIME); break;
    case __NR_setitimer:
        if (block->call[1] == ITIMER_REAL) replace_timer(block, 2, 1000, 0);
        break;
    case __NR_alarm: block->rax = set_alarm((u32)block->call[1]); return ENTER_DONE;
    case __NR_semtimedop: replace(block, 4, 1, -1, 4); break;
    case __NR_recvmmsg: replace(block, 5, 1, -1, 4); break;
    case __NR_mq_timedsend:
    case __NR_mq_timedreceive: replace(block, 5, 1, CLOCK_REALTIME, 4); break;
    case __NR_futex_waitv:
        if (is_virtual(block->call[5])) replace(block, 4, 1, block->call[5], 4);
        break;
    case __NR_setsockopt:
        if (block->call[2] == SOL_SOCKET && (block->call[3] == SO_RCVTIMEO || block->call[3] == SO_SNDTIMEO))
            replace(block, 4, 1000, -1, 4);
        break;
    }
    return ENTER_KERNEL;
}

/* The guest's time in place of the kernel's at an address: `pairs` of seconds and parts of a
 * second. */
static void lengthen(u64 to, u32 pairs, u64 unit) {
    u64 at[4];
    if (!to || copy_in(at, to, pairs * 16)) return;
    for (u32 i = 0; i < 2 * pairs; i += 2) {
        u64 ns = longer(at[i] * NS + at[i + 1] * unit);
        at[i] = ns / NS;
        at[i + 1] = ns % NS / unit;
    }
    copy_out(to, at, pairs * 16);
}

/* What is left of a sleep that a signal ended, or of a timer. */
void virtual_time_after(struct block *block) {
    u64 number = block->call[0];
    i64 result = block->rax;
    if (block->wait_began) show_wait(block);
    if (number == __NR_times && !is_error(result)) block->rax = virtual_ticks(result);
    if (number == __NR_adjtimex && result >= 0) adjust_timex(block->call[1]);
    if (number == __NR_clock_adjtime && result >= 0 && block->call[1] == CLOCK_REALTIME) adjust_timex(block->call[2]);
    if (number == __NR_nanosleep && result == -EINTR) lengthen(block->call[2], 1, 1);
    if (number == __NR_clock_nanosleep && result == -EINTR) lengthen(block->call[4], 1, 1);
    if (result) return;
    if ((number == __NR_getitimer || number == __NR_setitimer) && block->call[1] != ITIMER_REAL) return;
    switch (number) {
    case __NR_sysinfo: {
        u64 uptime = (now(CLOCK_BOOTTIME) + NS - 1) / NS;
        copy_out(block->call[1], &uptime, sizeof uptime);
        break;
    }
    case __NR_timer_gettime:
    case __NR_timerfd_gettime: lengthen(block->call[2], 2, 1); break;
    case __NR_getitimer: lengthen(block->call[2], 2, 1000); break;
    case __NR_setitimer: lengthen(block->call[3], 2, 1000); break;
    case __NR_timer_settime:
    case __NR_timerfd_settime: lengthen(block->call[4], 2, 1); break;
    }
}
