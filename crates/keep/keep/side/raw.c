/* The library's own system calls, all in one place: in a replay those made from elsewhere are
 * handed over (confined.c). The kernel judges by the address behind the instruction, which so lies
 * before keep_text_end.
 */
#include "own.h"

__asm__(".text\n"
        ".globl keep_text\n.hidden keep_text\nkeep_text:\n"
        ".globl keep_raw\n.hidden keep_raw\n.type keep_raw,@function\n"
        "keep_raw:\n .cfi_startproc\n mov keep_signals_wait@gottpoff(%rip),%rax\n"
        " cmpl $0,%fs:(%rax)\n jne keep_signalled\n"
        ".globl keep_raw_begin\n.hidden keep_raw_begin\nkeep_raw_begin:\n"
        " mov %rdi,%rax\n mov %rsi,%rdi\n mov %rdx,%rsi\n mov %rcx,%rdx\n mov %r8,%r10\n mov %r9,%r8\n"
        " mov 8(%rsp),%r9\n"
        ".globl keep_check\n.hidden keep_check\n.globl keep_syscall\n.hidden keep_syscall\n"
        "keep_check: mov keep_deferred@gottpoff(%rip),%r11\n cmpl $0,%fs:(%r11)\n jne 1f\n"
        "keep_syscall: syscall\n ret\n"
        "1: mov $-4,%rax\n ret\n" /* -EINTR */
        ".globl keep_signalled\n.hidden keep_signalled\n"
        "keep_signalled: mov $-1001,%rax\n ret\n .cfi_endproc\n"
        ".globl keep_plain\n.hidden keep_plain\n.type keep_plain,@function\n"
        "keep_plain:\n .cfi_startproc\n mov %rdi,%rax\n mov %rsi,%rdi\n mov %rdx,%rsi\n mov %rcx,%rdx\n mov %r8,%r10\n"
        " mov %r9,%r8\n mov 8(%rsp),%r9\n"
        " syscall\n ret\n .cfi_endproc\n"
        /* A call of the program, with its registers, which continues where it was asked for:
         * one for each such place (confined.c). */
        ".globl keep_itself\n.hidden keep_itself\nkeep_itself:\n"
        " .set at,0\n .rept 16\n syscall\n jmp *keep_back+at(%rip)\n .set at,at+8\n .endr\n"
        /* As libc has it, by which unwinders know it. */
        " nop\n.globl keep_handler_end\n.hidden keep_handler_end\n"
        "keep_handler_end: mov $15,%rax\n syscall\n nop\n"
        ".globl keep_text_end\n.hidden keep_text_end\nkeep_text_end: nop\n");
