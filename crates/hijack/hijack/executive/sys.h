/* Integers, raw system calls, memory functions: what a C library would offer. */
#ifndef SYS_H
#define SYS_H

/* All is within one image: no table of addresses to go through. */
#pragma GCC visibility push(hidden)

#include <asm/errno.h>
#include <asm/unistd_64.h>

typedef unsigned long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef long i64;
typedef int i32;

#define NULL ((void *)0)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define offset_of(type, field) __builtin_offsetof(type, field)
#define array_length(array) (sizeof(array) / sizeof(array)[0])

/*
 * A call of the executive's own, by the one instruction that a guest's seccomp filter lets pass
 * (filters.c lists which calls).
 */
ALWAYS_INLINE i64 raw_call(i64 number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
    i64 result;
    register u64 r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("call own_call"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

/* A call for the guest, which its filters judge. */
ALWAYS_INLINE i64 call_for_guest(const u64 call[7]) {
    i64 result;
    register u64 r10 __asm__("r10") = call[4], r8 __asm__("r8") = call[5], r9 __asm__("r9") = call[6];
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(call[0]), "D"(call[1]), "S"(call[2]), "d"(call[3]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#define SYS6(n, a, b, c, d, e, f) raw_call(n, (u64)(a), (u64)(b), (u64)(c), (u64)(d), (u64)(e), (u64)(f))
#define SYS5(n, a, b, c, d, e) SYS6(n, a, b, c, d, e, 0)
#define SYS4(n, a, b, c, d) SYS6(n, a, b, c, d, 0, 0)
#define SYS3(n, a, b, c) SYS6(n, a, b, c, 0, 0, 0)
#define SYS2(n, a, b) SYS6(n, a, b, 0, 0, 0, 0)
#define SYS1(n, a) SYS6(n, a, 0, 0, 0, 0, 0)
#define SYS0(n) SYS6(n, 0, 0, 0, 0, 0, 0)

/* Whether a system call's result, or an address in its place, is an error. */
ALWAYS_INLINE int is_error(i64 result) { return (u64)result > -4096ul; }

ALWAYS_INLINE u64 time_stamp(void) {
    u32 low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (u64)high << 32 | low;
}

void *memcpy(void *to, const void *from, u64 bytes);
void *memset(void *to, int value, u64 bytes);
int memcmp(const void *a, const void *b, u64 bytes);
u64 string_length(const char *text);
int same_string(const char *a, const char *b);
/* Appends the decimal digits of `value` and a zero byte; returns the new end. */
char *append_number(char *to, u64 value);
/* Copies at most `limit` - 1 bytes and a zero byte; returns the end. */
char *append_string(char *to, const char *from, u64 limit);

/* Writes "hijack: TEXT VALUE" to stderr and ends the process with status 120. */
__attribute__((noreturn)) void die(const char *text, const char *detail, i64 error);

/*
 * Copies from and to memory of the guest whose pointers may be wrong. The kernel does the copying,
 * so a wrong pointer costs no fault. Returns 0, or -EFAULT if not all bytes could be copied.
 */
i64 copy_in(void *to, u64 from, u64 bytes);
i64 copy_out(u64 to, const void *from, u64 bytes);
/* Copies as much as is readable, up to `bytes`; returns the number of bytes. */
i64 copy_some(void *to, u64 from, u64 bytes);
/* Copies a string with its zero byte. Returns its length, -EFAULT, or -ENAMETOOLONG if `limit`
 * bytes hold no zero. */
i64 copy_string(char *to, u64 from, u64 limit);

#endif
