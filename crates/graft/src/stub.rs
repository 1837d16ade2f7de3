//! The stub: machine code that makes one call in a program and can continue without its tracer.
//!
//! ```text
//! entry:  syscall                     the injected call; the tracer stops the thread after it
//!         mov …; syscall              for each thing to undo, newest first
//!         rt_sigprocmask(mask)
//!         mov …                       the registers that calls change or take
//!         jmp *(where)
//! mask:   .quad
//! where:  .quad
//! ```
//! It uses no stack, changes no flags and no vector registers. The first six bytes after `entry` are fixed, so that a stub which a
//! killed tracer left is recognised. [`room`] finds where it can stand.

use crate::Error;
use crate::process::Process;
use libc::user_regs_struct;
use orbit_linux::maps::Entry;

/// A call that undoes something: its number and first two arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undo {
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 2],
}

/// Bytes of a `syscall` instruction.
pub(crate) const CALL_LEN: usize = SYSCALL.len();
/// How many things a stub can undo.
pub(crate) const MAX_UNDO: usize = 16;
/// Bytes of the largest stub.
pub(crate) const MAX_LEN: usize = 2 + MARK.len() + MAX_UNDO * UNDO_LEN + 30 + 9 * 10 + 6 + 16;

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `xchg %ax,%ax` twice: does nothing, and follows the entry of every stub.
pub(crate) const MARK: [u8; 4] = [0x66, 0x90, 0x66, 0x90];
/// Three `mov` with 64 bits, and the call.
const UNDO_LEN: usize = 32;

/// The code of a stub that continues with `registers` (settled) and `mask`.
pub(crate) fn code(registers: &user_regs_struct, mask: u64, undo: &[Undo]) -> Vec<u8> {
    let mut code = Vec::with_capacity(MAX_LEN);
    code.extend(SYSCALL);
    code.extend(MARK);
    for undo in undo.iter().rev() {
        mov(&mut code, RAX, undo.number as u64);
        mov(&mut code, RDI, undo.arguments[0]);
        mov(&mut code, RSI, undo.arguments[1]);
        code.extend(SYSCALL);
    }
    // What follows the mask's address is of known length.
    let after_lea = 5 + 6 + 2 + 9 * 10 + 6;
    code.extend([0xb8, libc::SYS_rt_sigprocmask as u8, 0, 0, 0]);
    code.extend([0xbf, libc::SIG_SETMASK as u8, 0, 0, 0]);
    code.extend([0x48, 0x8d, 0x35, after_lea, 0, 0, 0]);
    code.extend([0xba, 0, 0, 0, 0]);
    code.extend([0x41, 0xba, 8, 0, 0, 0]);
    code.extend(SYSCALL);
    let r = registers;
    for (register, value) in [
        (RDI, r.rdi),
        (RSI, r.rsi),
        (RDX, r.rdx),
        (R10, r.r10),
        (R8, r.r8),
        (R9, r.r9),
        (RCX, r.rcx),
        (R11, r.r11),
        (RAX, r.rax),
    ] {
        mov(&mut code, register, value);
    }
    // Over the mask, to the address after it.
    code.extend([0xff, 0x25, 8, 0, 0, 0]);
    code.extend(mask.to_le_bytes());
    code.extend(r.rip.to_le_bytes());
    code
}

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RSI: u8 = 6;
const RDI: u8 = 7;
const R8: u8 = 8;
const R9: u8 = 9;
const R10: u8 = 10;
const R11: u8 = 11;

/// `movabs $value, register`.
fn mov(code: &mut Vec<u8>, register: u8, value: u64) {
    code.extend([if register < 8 { 0x48 } else { 0x49 }, 0xb8 | (register & 7)]);
    code.extend(value.to_le_bytes());
}

/// Where a stub of [`MAX_LEN`] bytes can stand in a stopped program: bytes that are mapped executable, that nothing uses, and at
/// which none of `at` (program counters) is.
///
/// The kernel maps the vdso in whole pages, and what follows its image is zero.
pub(crate) fn room(process: &Process, maps: &[Entry], at: &[u64]) -> Result<u64, Error> {
    for entry in maps.iter().filter(|e| e.name == "[vdso]" && e.protection & libc::PROT_EXEC != 0) {
        let start = entry.end - MAX_LEN as u64;
        let mut bytes = [0u8; MAX_LEN];
        process.read(start, &mut bytes)?;
        let unused = bytes.iter().all(|b| *b == 0) || bytes[CALL_LEN..].starts_with(&MARK);
        if entry.end - entry.start >= 2 * MAX_LEN as u64
            && unused
            && !at.iter().any(|pc| (start..entry.end).contains(pc))
        {
            return Ok(start);
        }
    }
    let why = "it has no vdso with unused bytes after its image, where calls could be made from".into();
    Err(Error::Unsuitable { id: process.pid(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stub_has_its_length() {
        // SAFETY: all-zero bytes are a value of this struct of integers.
        let registers: user_regs_struct = unsafe { std::mem::zeroed() };
        let undo = [Undo { number: libc::SYS_close, arguments: [3, 0] }; MAX_UNDO];
        assert_eq!(code(&registers, 0, &undo).len(), MAX_LEN);
        assert_eq!(code(&registers, 0, &[])[..6], [0x0f, 0x05, 0x66, 0x90, 0x66, 0x90]);
    }
}
