/*
 * The ways in and out of the executive. The ranges between labels are what `on_signal` tells apart, so code may move
 * between them only with signals.c at hand.
 */
#include "offsets.h"
#include <asm/unistd_64.h>

/*
 * The gate, for guests that call the executive as a function: orbit_rpc(number, a, b, c). It is the first byte of
 * the image. From gate_check on, a signal makes the thread begin there anew.
 */
    .section .gate, "ax"
    .globl gate_check, gate_end, context_end
gate:
    mov %rsp, %gs:B_RSP
    mov %rbx, %gs:B_RBX
    mov %rbp, %gs:B_RBP
    mov %r12, %gs:B_R12
    mov %r13, %gs:B_R13
    mov %r14, %gs:B_R14
    mov %r15, %gs:B_R15
    mov %gs:B_TOP, %rsp
    mov %gs:B_SELF, %r8
    cld
    call rpc
    mov %rax, %gs:B_RAX
gate_check:
    cmpl $0, %gs:B_PENDING
    jne gate_deferred
    mov %gs:B_RAX, %rax
    mov %gs:B_RBX, %rbx
    mov %gs:B_RDI, %rdi
    mov %gs:B_RBP, %rbp
    mov %gs:B_R12, %r12
    mov %gs:B_R13, %r13
    mov %gs:B_R14, %r14
    mov %gs:B_R15, %r15
    mov %gs:B_RSP, %rsp
    ret
gate_end:
gate_deferred:
    mov %gs:B_TOP, %rsp
    mov %gs:B_SELF, %rdi
    call rpc_deferred
    hlt
/* Where the function of a context returns to. */
context_end:
    sub $8, %rsp
    mov $RPC_CONTEXT_END, %edi
    jmp gate

/* i64 call_object(function, a, b, c, d): a fault or a limit continues at object_escape. */
    .text
    .globl call_object, object_escape
call_object:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    sub $8, %rsp
    mov %rdi, %rax
    mov %rsi, %rdi
    mov %rdx, %rsi
    mov %rcx, %rdx
    mov %r8, %rcx
    mov %rsp, %gs:B_OBJECT_SP
    call *%rax
object_return:
    movq $0, %gs:B_OBJECT_SP
    add $8, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret
object_escape:
    mov %gs:B_OBJECT_SP, %rsp
    cld
    jmp object_return

    .globl _start
_start:
    mov %rsp, %rdi
    movabs $first_stack+32768, %rsp
    xor %ebp, %ebp
    call start
    hlt

/*
 * From a stub, r11 = stub, rcx free, all other registers the guest's. Until slow_saved nothing has changed but
 * rcx and r11, so that a signal may move the thread back to the site.
 */
    .p2align 6
    .globl slow_entry, slow_save, slow_saved, leave, leave_end
slow_entry:
    cmp $511, %rax
    ja slow_save
    lea call_flags(%rip), %rcx
    cmpb $FLAG_POINTERS, (%rcx, %rax)
    jne slow_save
    /* Whatever the arguments are: which of them are addresses, `enter` knows. */
    .irp argument, rdi, rsi, rdx, r10, r8, r9
    mov %\argument, %rcx
    shr $RANGE_SHIFT, %rcx
    sub $RANGE_BEGINS, %ecx
    cmp $RANGE_LENGTH, %ecx
    jb slow_save
    .endr
    lea STUB_PASSED(%r11), %rcx
    jmp *%rcx
slow_save:
    mov %r11, %gs:B_STUB
    mov %rax, %gs:B_RAX
    mov %rbx, %gs:B_RBX
    mov %rdx, %gs:B_RDX
    mov %rsi, %gs:B_RSI
    mov %rdi, %gs:B_RDI
    mov %rbp, %gs:B_RBP
    mov %rsp, %gs:B_RSP
    mov %r8, %gs:B_R8
    mov %r9, %gs:B_R9
    mov %r10, %gs:B_R10
    mov %r12, %gs:B_R12
    mov %r13, %gs:B_R13
    mov %r14, %gs:B_R14
    mov %r15, %gs:B_R15
slow_saved:
    mov %gs:B_TOP, %rsp
    cld
    mov %gs:B_SELF, %rdi
    call enter
    cmp $ENTER_KERNEL, %eax
    je to_kernel
    cmp $ENTER_SIGRETURN, %eax
    je sigreturn_begin

/* Gives the guest its registers back. Begun anew if a signal arrives before its last instruction. */
leave:
    cmpl $0, %gs:B_PENDING
    jne leave_deferred
    mov %gs:B_RAX, %rax
    mov %gs:B_RBX, %rbx
    mov %gs:B_RDX, %rdx
    mov %gs:B_RSI, %rsi
    mov %gs:B_RDI, %rdi
    mov %gs:B_RBP, %rbp
    mov %gs:B_R8, %r8
    mov %gs:B_R9, %r9
    mov %gs:B_R10, %r10
    mov %gs:B_R12, %r12
    mov %gs:B_R13, %r13
    mov %gs:B_R14, %r14
    mov %gs:B_R15, %r15
    mov %gs:B_RSP, %rsp
    /* Zero, as it never is behind a syscall instruction: see `lost_dispatch`. */
    mov $0, %r11d
    mov %gs:B_RIP, %rcx
    jmp *%rcx
leave_end:

leave_deferred:
    mov %gs:B_TOP, %rsp
    mov %gs:B_SELF, %rdi
    call deliver_deferred
    hlt

/* The call as the executive lets it be. A signal before kernel_call is delivered first, at the site. */
to_kernel:
    mov %gs:B_CALL, %rax
    mov %gs:B_CALL+8, %rdi
    mov %gs:B_CALL+16, %rsi
    mov %gs:B_CALL+24, %rdx
    mov %gs:B_CALL+32, %r10
    mov %gs:B_CALL+40, %r8
    mov %gs:B_CALL+48, %r9
    .globl kernel_check, kernel_call, kernel_made, kernel_abort
kernel_check:
    cmpl $0, %gs:B_PENDING
    jne kernel_abort
kernel_call:
    syscall
kernel_made:
    mov %rax, %gs:B_RAX
    mov %gs:B_TOP, %rsp
    mov %gs:B_SELF, %rdi
    call after
    jmp leave
kernel_abort:
    mov %gs:B_TOP, %rsp
    mov %gs:B_SELF, %rdi
    call abort_call
    jmp leave

/* A filter of the guest's own sent SIGSYS in place of the call. */
    .globl kernel_trapped
kernel_trapped:
    mov %rax, %gs:B_RAX
    mov %gs:B_TOP, %rsp
    mov %gs:B_SELF, %rdi
    call trapped
    jmp leave

/* The executive's own calls, by one instruction, of which guests' filters know: see filters.c. */
    .globl own_call, own_called
own_call:
    syscall
own_called:
    ret

/* The guest returns from its handler: the kernel takes the frame from the guest's stack. */
    .globl sigreturn_begin, sigreturn_call
sigreturn_begin:
    cmpl $0, %gs:B_PENDING
    jne kernel_abort
    mov %gs:B_RSP, %rsp
    mov $__NR_rt_sigreturn, %eax
sigreturn_call:
    syscall
    hlt

/* i64 make_thread(number, arguments, child): the child takes its own block and stack before it uses either. */
    .globl make_thread
make_thread:
    push %r12
    mov %rdx, %r12
    mov %rdi, %rax
    mov %rsi, %rcx
    mov (%rcx), %rdi
    mov 8(%rcx), %rsi
    mov 16(%rcx), %rdx
    mov 24(%rcx), %r10
    mov 32(%rcx), %r8
    mov 40(%rcx), %r9
    syscall
    test %rax, %rax
    jz 1f
    pop %r12
    ret
1:  wrgsbase %r12
    mov %gs:B_TOP, %rsp
    mov %r12, %rdi
    call child_start
    jmp leave

/* i64 wait_unless_pending(word, operation, value, limit): a signal before or in the call ends at wait_ended. */
    .globl wait_unless_pending, wait_check, wait_call, wait_called, wait_ended
wait_unless_pending:
    mov %rcx, %r10
    mov $__NR_futex, %eax
wait_check:
    cmpl $0, %gs:B_PENDING
    jne wait_ended
wait_call:
    call own_call
wait_called:
    ret
wait_ended:
    mov $-4, %rax
    ret

/* end_thread(status, busy): frees the block and ends; uses no stack in between. */
    .globl end_thread
end_thread:
    movl $0, (%rsi)
    mov $__NR_exit, %eax
    jmp own_call

    .globl restorer
restorer:
    mov $__NR_rt_sigreturn, %eax
    jmp own_call

/* return_through(frame): what follows is the frame's context. */
    .globl return_through
return_through:
    lea 8(%rdi), %rsp
    mov $__NR_rt_sigreturn, %eax
    jmp own_call

/* begin_guest(stack, address): registers as the kernel leaves them after exec. */
    .globl begin_guest
begin_guest:
    mov %rdi, %rsp
    mov %rsi, %rcx
    xor %eax, %eax
    xor %ebx, %ebx
    xor %edx, %edx
    xor %esi, %esi
    xor %edi, %edi
    xor %ebp, %ebp
    xor %r8d, %r8d
    xor %r9d, %r9d
    xor %r10d, %r10d
    xor %r11d, %r11d
    xor %r12d, %r12d
    xor %r13d, %r13d
    xor %r14d, %r14d
    xor %r15d, %r15d
    jmp *%rcx

    .section .note.GNU-stack, "", @progbits
