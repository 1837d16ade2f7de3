/* Offsets and sizes that assembly and C share. `block.h` asserts that they match the structures. */
#ifndef OFFSETS_H
#define OFFSETS_H

#define B_SELF 0
#define B_TOP 8
#define B_RAX 16
#define B_RBX 24
#define B_RDX 32
#define B_RSI 40
#define B_RDI 48
#define B_RBP 56
#define B_RSP 64
#define B_R8 72
#define B_R9 80
#define B_R10 88
#define B_R12 96
#define B_R13 104
#define B_R14 112
#define B_R15 120
#define B_RIP 128
#define B_STUB 160
#define B_PENDING 168
#define B_COUNTS 176
#define B_CALL 184
#define B_OBJECT_SP 240

/* Calls that nothing but their addresses takes out of the short way. */
#define FLAG_POINTERS 32
/* Where a stub continues with a call that takes the short way. */
#define STUB_PASSED 17
/* The executive's range, in 64 GiB. */
#define RANGE_SHIFT 36
#define RANGE_BEGINS 0x1f0
#define RANGE_LENGTH 3

/* The number of the interface that `context_end` calls. */
#define RPC_CONTEXT_END 0x10007

/* Entry path's verdicts, returned by `enter`. */
#define ENTER_DONE 0
#define ENTER_KERNEL 1
#define ENTER_SIGRETURN 2

#endif
