/* Programs: what execve checks, and the mapping of an ELF file and its interpreter as the kernel
 * does it. */
#include "block.h"

#define MAX_HEADERS 64
#define MAX_SCRIPTS 5
#define PIE_BASE 0x555555554000ul
#define ADDR_NO_RANDOMIZE 0x0040000

typedef struct elf64_hdr header;
typedef struct elf64_phdr segment;

static int is_space(char c) { return c == ' ' || c == '\t'; }

char *script_line(char *text, char **argument) {
    *argument = NULL;
    while (is_space(*text)) text++;
    char *end = text;
    while (*end && *end != '\n') end++;
    while (end > text && is_space(end[-1])) end--;
    *end = 0;
    char *at = text;
    while (*at && !is_space(*at)) at++;
    if (*at) {
        *at++ = 0;
        while (is_space(*at)) at++;
        if (*at) *argument = at;
    }
    return text;
}

static int is_program(const header *elf) {
    const u8 *id = elf->e_ident;
    return id[0] == 0x7f && id[1] == 'E' && id[2] == 'L' && id[3] == 'F' && id[EI_CLASS] == ELFCLASS64 &&
           elf->e_machine == EM_X86_64 && (elf->e_type == ET_EXEC || elf->e_type == ET_DYN) &&
           elf->e_phentsize == sizeof(segment) && elf->e_phnum && elf->e_phnum <= MAX_HEADERS;
}

static int read_segments(i64 file, const header *elf, segment *segments) {
    u64 bytes = elf->e_phnum * sizeof(segment);
    return SYS4(__NR_pread64, file, segments, bytes, elf->e_phoff) == (i64)bytes;
}

/* The interpreter's path of a program; empty: none. */
static i64 read_interpreter(i64 file, const header *elf, const segment *segments, char *path, u64 limit) {
    path[0] = 0;
    for (u32 i = 0; i < elf->e_phnum; i++) {
        if (segments[i].p_type != PT_INTERP) continue;
        u64 bytes = segments[i].p_filesz;
        if (bytes < 2 || bytes > limit) return -ENOEXEC;
        if (SYS4(__NR_pread64, file, path, bytes, segments[i].p_offset) != (i64)bytes || path[bytes - 1])
            return -ENOEXEC;
        return 0;
    }
    return 0;
}

static i64 check_elf(i64 file, const header *elf) {
    segment segments[MAX_HEADERS];
    char interpreter[1024];
    if (!is_program(elf) || !read_segments(file, elf, segments)) return -ENOEXEC;
    i64 error = read_interpreter(file, elf, segments, interpreter, sizeof interpreter);
    if (error || !interpreter[0]) return error;
    i64 other = SYS3(__NR_open, interpreter, O_RDONLY | O_CLOEXEC, 0);
    if (is_error(other)) return other;
    header second;
    i64 n = SYS4(__NR_pread64, other, &second, sizeof second, 0);
    SYS1(__NR_close, other);
    return n == sizeof second && is_program(&second) ? 0 : -80 /* ELIBBAD */;
}

i64 check_program(i64 file, u32 depth) {
    char text[257];
    i64 n = SYS4(__NR_pread64, file, text, 256, 0);
    if (n < 0) return n;
    text[n] = 0;
    if (n >= 2 && text[0] == '#' && text[1] == '!') {
        char *argument, *interpreter = script_line(text + 2, &argument);
        if (!*interpreter) return -ENOEXEC;
        if (depth >= MAX_SCRIPTS) return -40 /* ELOOP */;
        i64 next = SYS3(__NR_open, interpreter, O_RDONLY | O_CLOEXEC, 0);
        if (is_error(next)) return next;
        i64 error = SYS4(__NR_faccessat2, next, "", 1, AT_EMPTY_PATH | AT_EACCESS);
        if (!error || error == -ENOSYS) error = check_program(next, depth + 1);
        SYS1(__NR_close, next);
        return error;
    }
    return n < (i64)sizeof(header) ? -ENOEXEC : check_elf(file, (header *)text);
}

static u64 random_pages(void) {
    u64 value = 0;
    if (SYS1(__NR_personality, 0xffffffff) & ADDR_NO_RANDOMIZE) return 0;
    SYS3(__NR_getrandom, &value, sizeof value, 1 /* GRND_NONBLOCK */);
    return value & 0xfffffff;
}

/* Address space for a position-independent file; `main` ones lie where the kernel puts them. */
static u64 reserve(u64 bytes, u64 align, int is_main) {
    u64 flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (is_main) {
        u64 hint = (PIE_BASE + (random_pages() << 12)) & ~(align - 1);
        i64 at = SYS6(__NR_mmap, hint, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
        if (at == (i64)hint) return at;
        if (!is_error(at)) SYS2(__NR_munmap, at, bytes);
    }
    i64 at = SYS6(__NR_mmap, 0, bytes + align, PROT_NONE, flags, -1, 0);
    if (is_error(at)) die("no address space for the program", "", at);
    u64 start = ((u64)at + align - 1) & ~(align - 1);
    if (start > (u64)at) SYS2(__NR_munmap, at, start - at);
    if (start < (u64)at + align) SYS2(__NR_munmap, start + bytes, at + align - start);
    return start;
}

static u64 page_up(u64 value) { return (value + 4095) & ~4095ul; }

static void map_segment(i64 file, const segment *part, u64 bias, u64 key) {
    u64 begin = bias + part->p_vaddr, page = begin & ~4095ul, within = begin & 4095;
    u64 file_end = begin + part->p_filesz, end = begin + part->p_memsz;
    int protection = (part->p_flags & PF_R ? PROT_READ : 0) | (part->p_flags & PF_W ? PROT_WRITE : 0) |
                     (part->p_flags & PF_X ? PROT_EXEC : 0);
    if (part->p_filesz) {
        i64 at = SYS6(__NR_mmap, page, page_up(part->p_filesz + within), protection, MAP_PRIVATE | MAP_FIXED, file,
                      part->p_offset - within);
        if (is_error(at)) die("cannot map the program", "", at);
        if (protection == (PROT_READ | PROT_EXEC)) know_code(page, page_up(file_end), key, part->p_offset - within);
    }
    if (end <= file_end) return;
    u64 zero = part->p_filesz ? page_up(file_end) : page;
    if (part->p_filesz && (protection & PROT_WRITE)) memset((void *)file_end, 0, zero - file_end);
    if (page_up(end) > zero) {
        i64 at =
            SYS6(__NR_mmap, zero, page_up(end) - zero, protection, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0);
        if (is_error(at)) die("cannot map the program's data", "", at);
    }
}

/* Maps one file. Returns its bias: what is added to the addresses in it. */
static u64 map_file(i64 file, header *elf, segment *segments, int is_main) {
    if (SYS4(__NR_pread64, file, elf, sizeof *elf, 0) != sizeof *elf || !is_program(elf) ||
        !read_segments(file, elf, segments))
        die("not a program for this machine", "", 0);
    u64 low = ~0ul, high = 0, align = 4096, bias = 0;
    for (u32 i = 0; i < elf->e_phnum; i++) {
        const segment *part = &segments[i];
        if (part->p_type != PT_LOAD) continue;
        if (part->p_vaddr < low) low = part->p_vaddr & ~4095ul;
        if (part->p_vaddr + part->p_memsz > high) high = page_up(part->p_vaddr + part->p_memsz);
        if (part->p_align > align && !(part->p_align & (part->p_align - 1))) align = part->p_align;
    }
    if (low >= high) die("the program has no segment to load", "", 0);
    if (elf->e_type == ET_DYN) {
        bias = reserve(high - low, align, is_main) - low;
    } else {
        i64 at = SYS6(__NR_mmap, low, high - low, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (at != (i64)low) die("the addresses of the program are not free", "", at);
    }
    u64 key = identity(file);
    /* Segments in their order; what lies between them stays without access. */
    for (u32 i = 0; i < elf->e_phnum; i++)
        if (segments[i].p_type == PT_LOAD) map_segment(file, &segments[i], bias, key);
    return bias;
}

void load_program(i64 file, struct image *image) {
    static header elf, second;
    static segment segments[MAX_HEADERS], others[MAX_HEADERS];
    static char interpreter[1024];
    u64 bias = map_file(file, &elf, segments, 1);
    image->entry = bias + elf.e_entry;
    image->header_count = elf.e_phnum;
    image->headers = 0;
    for (u32 i = 0; i < elf.e_phnum; i++) {
        const segment *part = &segments[i];
        if (part->p_type == PT_LOAD && elf.e_phoff >= part->p_offset && elf.e_phoff < part->p_offset + part->p_filesz)
            image->headers = bias + part->p_vaddr + elf.e_phoff - part->p_offset;
    }
    image->start = image->entry;
    image->base = 0;
    if (read_interpreter(file, &elf, segments, interpreter, sizeof interpreter))
        die("the program's interpreter has no valid name", "", 0);
    if (!interpreter[0]) return;
    i64 other = SYS3(__NR_open, interpreter, O_RDONLY | O_CLOEXEC, 0);
    if (is_error(other)) die("cannot open the interpreter ", interpreter, other);
    image->base = map_file(other, &second, others, 0);
    image->start = image->base + second.e_entry;
    SYS1(__NR_close, other);
}
