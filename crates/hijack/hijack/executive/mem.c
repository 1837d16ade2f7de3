/* What a C library would offer: memory, strings, the last words, copies of guest memory. */
#include "block.h"

void *memcpy(void *to, const void *from, u64 bytes) {
    void *d = to;
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(from), "+c"(bytes)::"memory");
    return to;
}

void *memset(void *to, int value, u64 bytes) {
    void *d = to;
    __asm__ volatile("rep stosb" : "+D"(d), "+c"(bytes) : "a"(value) : "memory");
    return to;
}

/* For policy objects, whose compiler may call them. */
__attribute__((used)) void *memmove(void *to, const void *from, u64 bytes) {
    u8 *d = to;
    const u8 *s = from;
    if (d <= s || d >= s + bytes) return memcpy(to, from, bytes);
    while (bytes--) d[bytes] = s[bytes];
    return to;
}

__attribute__((used)) int memcmp(const void *a, const void *b, u64 bytes) {
    const u8 *x = a, *y = b;
    for (u64 i = 0; i < bytes; i++)
        if (x[i] != y[i]) return x[i] - y[i];
    return 0;
}

__attribute__((used)) u64 strlen(const char *text) { return string_length(text); }

u64 string_length(const char *text) {
    u64 n = 0;
    while (text[n]) n++;
    return n;
}

int same_string(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

char *append_number(char *to, u64 value) {
    char digits[24];
    u32 n = 0;
    do digits[n++] = '0' + value % 10;
    while (value /= 10);
    while (n) *to++ = digits[--n];
    *to = 0;
    return to;
}

char *append_string(char *to, const char *from, u64 limit) {
    while (limit-- > 1 && *from) *to++ = *from++;
    *to = 0;
    return to;
}

void die(const char *text, const char *detail, i64 error) {
    char line[512], *end = append_string(line, "hijack: ", 16);
    end = append_string(end, text, 200);
    end = append_string(end, detail, 200);
    if (error) {
        end = append_string(end, ": error ", 16);
        end = append_number(end, error < 0 ? -error : error);
    }
    end = append_string(end, "\n", 2);
    SYS3(__NR_write, 2, line, end - line);
    for (;;) SYS1(__NR_exit_group, 120);
}

struct vector {
    u64 base, length;
};

i64 copy_some(void *to, u64 from, u64 bytes) {
    struct vector local = {(u64)to, bytes}, remote = {from, bytes};
    if (!bytes) return 0;
    i64 n = SYS6(__NR_process_vm_readv, this_block()->pid, &local, 1, &remote, 1, 0);
    return n < 0 ? 0 : n;
}

/*
 * Whether the bytes lie in the page that the guest's stack pointer is in, which is there: most
 * small structures are local variables, and a call of the kernel for each costs half a microsecond.
 */
static int is_on_stack_page(u64 address, u64 bytes) {
    u64 page = this_block()->rsp & ~4095ul;
    return page && bytes <= 4096 && address - page <= 4096 - bytes;
}

i64 copy_in(void *to, u64 from, u64 bytes) {
    if (is_on_stack_page(from, bytes)) {
        memcpy(to, (const void *)from, bytes);
        return 0;
    }
    return copy_some(to, from, bytes) == (i64)bytes ? 0 : -EFAULT;
}

i64 copy_out(u64 to, const void *from, u64 bytes) {
    if (is_on_stack_page(to, bytes)) {
        memcpy((void *)to, from, bytes);
        return 0;
    }
    struct vector local = {(u64)from, bytes}, remote = {to, bytes};
    return SYS6(__NR_process_vm_writev, this_block()->pid, &local, 1, &remote, 1, 0) == (i64)bytes ? 0 : -EFAULT;
}

i64 copy_string(char *to, u64 from, u64 limit) {
    /* The kernel copies page by page and stops at the first page that is not there. */
    u64 have = 0;
    while (have < limit) {
        u64 want = 4096 - ((from + have) & 4095);
        if (want > 256) want = 256;
        if (want > limit - have) want = limit - have;
        u64 got = copy_some(to + have, from + have, want);
        for (u64 i = have; i < have + got; i++)
            if (!to[i]) return i;
        if (got < want) return -EFAULT;
        have += got;
    }
    return -ENAMETOOLONG;
}
