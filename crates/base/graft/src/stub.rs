//! The stub: machine code that makes one call in a program and can continue without its tracer.
//!
//! ```text
//! entry:  syscall                     the injected call; the tracer stops the thread after it
//!         …                           undoes what the call made, if it has succeeded
//!         mov …; syscall              for each thing to undo, newest first
//!         rt_sigprocmask(mask)
//!         mov …                       the registers that calls change or take
//!         jmp *(where)
//! mask:   .quad
//! where:  .quad
//! ```
//! Where a tracer stops the thread after the call, it resets it and the rest never runs.
//! The stub uses no stack, changes no flags and no vector registers. The four bytes after the call
//! are fixed, so that a stub which a killed tracer left is recognised. [`room`] finds where it can
//! stand.

use crate::Error;
use crate::process::Process;
use libc::user_regs_struct;
use orbit_linux::maps::Entry;

/// A thing in the program that is undone at the end, by an injected call or by the stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    /// Unmaps memory.
    Unmap { start: u64, len: u64 },
    /// Closes a descriptor.
    Close { number: i32 },
    /// Closes the descriptor whose number is at this address, nothing if that is -1.
    CloseAt { address: u64 },
}

/// What the injected call makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Makes {
    /// Nothing that the stub could undo.
    Nothing,
    /// A mapping of so many bytes.
    Mapping { len: u64 },
    /// A descriptor.
    Descriptor,
}

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes of a `syscall` instruction.
pub(crate) const CALL_LEN: usize = SYSCALL.len();
/// `xchg %ax,%ax` twice: does nothing, and follows the entry of every stub.
pub(crate) const MARK: [u8; 4] = [0x66, 0x90, 0x66, 0x90];
/// Bytes that restore the mask and the registers, with the two words after them.
const TAIL_LEN: usize = 30 + 9 * 10 + 6 + 16;
/// Bytes that undo what the call made, at most.
const MADE_LEN: usize = 34;
/// Bytes that undo one thing, at most.
const UNDO_LEN: usize = 27;
/// How many things a stub must be able to undo.
pub(crate) const MIN_UNDO: usize = 6;
/// Bytes of a stub that undoes so many things.
const fn len(undo: usize) -> usize {
    CALL_LEN + MARK.len() + MADE_LEN + undo * UNDO_LEN + TAIL_LEN
}

/// Where stubs can stand: one for the thread that undoes everything, one for another that makes
/// calls meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) address: u64,
    pub(crate) len: usize,
}

/// Bytes for the second stub, which undoes nothing.
const VISITOR_LEN: usize = len(0).next_multiple_of(16);
/// Bytes of the smallest room.
const MIN_LEN: usize = VISITOR_LEN + len(MIN_UNDO);

impl Room {
    /// Where the second stub stands.
    pub(crate) fn visitor(self) -> u64 {
        self.address
    }

    /// Where the first stub stands.
    pub(crate) fn anchor(self) -> u64 {
        self.address + VISITOR_LEN as u64
    }

    /// How many things the first stub can undo.
    pub(crate) fn undo(self) -> usize {
        (self.len - VISITOR_LEN - len(0)) / UNDO_LEN
    }
}

/// The code of a stub that continues with `registers` (settled) and `mask`.
pub(crate) fn code(registers: &user_regs_struct, mask: u64, makes: Makes, undo: &[Undo]) -> Vec<u8> {
    let mut code = Vec::with_capacity(len(undo.len()));
    code.extend(SYSCALL);
    code.extend(MARK);
    match makes {
        Makes::Nothing => {}
        Makes::Mapping { len } => undo_made(&mut code, libc::SYS_munmap, len),
        Makes::Descriptor => undo_made(&mut code, libc::SYS_close, 0),
    }
    for undo in undo.iter().rev() {
        match *undo {
            Undo::Unmap { start, len } => {
                mov(&mut code, RDI, start);
                mov(&mut code, RSI, len);
                call(&mut code, libc::SYS_munmap);
            }
            Undo::Close { number } => {
                mov(&mut code, RDI, number as u64);
                call(&mut code, libc::SYS_close);
            }
            Undo::CloseAt { address } => {
                // mov address, %eax; mov %eax, %edi
                code.push(0xa1);
                code.extend(address.to_le_bytes());
                code.extend([0x89, 0xc7]);
                call(&mut code, libc::SYS_close);
            }
        }
    }
    // What follows the mask's address is of known length: two mov, the call, nine mov, the jump.
    let after_lea = 5 + 6 + 2 + 9 * 10 + 6;
    code.extend([0xbf, libc::SIG_SETMASK as u8, 0, 0, 0]);
    code.extend([0x48, 0x8d, 0x35, after_lea + 5, 0, 0, 0]);
    code.extend([0xba, 0, 0, 0, 0]);
    code.extend([0x41, 0xba, 8, 0, 0, 0]);
    call(&mut code, libc::SYS_rt_sigprocmask);
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

/// `mov $number, %eax; syscall`.
fn call(code: &mut Vec<u8>, number: i64) {
    code.push(0xb8);
    code.extend((number as u32).to_le_bytes());
    code.extend(SYSCALL);
}

/// A call with the result of the one before it and `second`, unless that one failed: then its
/// highest byte is no zero.
fn undo_made(code: &mut Vec<u8>, number: i64, second: u64) {
    let mut undo = vec![0x48, 0x89, 0xc7]; // mov %rax, %rdi
    mov(&mut undo, RSI, second);
    call(&mut undo, number);
    // mov %rax, %rcx; bswap %rcx; movzbl %cl, %ecx; jrcxz over the next; jmp over it all. None of
    // these changes flags.
    code.extend([0x48, 0x89, 0xc1, 0x48, 0x0f, 0xc9, 0x0f, 0xb6, 0xc9, 0xe3, 2, 0xeb, undo.len() as u8]);
    code.extend(undo);
}

/// How far up its stack a thread is searched for a handler of a signal that will return to a stub.
const SEARCHED: u64 = 64 << 10;

/// Where a stub can stand in a stopped program: bytes that are mapped executable, that nothing
/// uses, and at which none of `at` (program counter and stack pointer of each thread) is.
///
/// A stub that a killed tracer left is nothing's once its thread has come home. One that a thread
/// stands in may lead into another that was left: so as long as a thread is in any, or will return
/// to one, all stay.
///
/// The kernel maps the vdso in whole pages, and what follows its image is zero. Where there is
/// none, or no room: the end of a mapped file's code, which linkers fill with zeros up to the page;
/// while all threads are stopped nobody reads there.
pub(crate) fn room(process: &Process, maps: &[Entry], at: &[(u64, u64)]) -> Result<Room, Error> {
    let code = |e: &&Entry| e.protection & libc::PROT_EXEC != 0 && !e.shared;
    let vdso = maps.iter().filter(code).filter(|e| e.name == "[vdso]");
    let files = maps.iter().filter(code).filter(|e| e.inode != 0);
    let mut ends = Vec::new();
    for entry in vdso.chain(files) {
        // The last page that it has, and no more than half of it.
        let mut bytes = vec![0u8; 2048];
        if entry.end - entry.start < 4096 || process.read(entry.end - 2048, &mut bytes).is_err() {
            continue;
        }
        ends.push((entry.end, unused_from(&bytes, true), unused_from(&bytes, false)));
    }
    let address = |(end, unused): (u64, usize)| end - (2048 - unused) as u64;
    let left: Vec<_> =
        ends.iter().filter(|(_, from, zeros)| from != zeros).map(|(end, from, _)| (*end, *from)).collect();
    let is_left = |word: u64| left.iter().any(|one| (address(*one)..one.0).contains(&word));
    let stays = !left.is_empty() && at.iter().any(|(pc, sp)| is_left(*pc) || returns_to(process, *sp, is_left));
    for (end, from, zeros) in ends {
        let unused = if stays { zeros } else { from };
        let room = Room { address: address((end, unused)), len: 2048 - unused };
        let occupied = at.iter().any(|(pc, _)| (room.address..end).contains(pc));
        if room.len >= MIN_LEN && !occupied {
            return Ok(room);
        }
    }
    let why = if stays {
        "a thread has not come home yet from where a tracer that was killed had it: try again"
    } else {
        "none of its executable mappings ends with unused bytes from which calls could be made"
    };
    Err(Error::Unsuitable { id: process.pid(), why: why.into() })
}

/// Whether a word of this stack, near its pointer, is an address of this kind.
fn returns_to(process: &Process, sp: u64, is_wanted: impl Fn(u64) -> bool) -> bool {
    let mut page = [0u8; 4096];
    let mut at = sp & !7;
    while at < sp.saturating_add(SEARCHED) {
        // To the end of the page: what follows may not be mapped.
        let len = (4096 - at % 4096) as usize;
        if process.read(at, &mut page[..len]).is_err() {
            break;
        }
        let mut words = page[..len].as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        if words.any(&is_wanted) {
            return true;
        }
        at += len as u64;
    }
    false
}

/// Where the unused bytes at the end begin, in whole words: zeros, or, if wanted, a stub that was
/// left there.
fn unused_from(bytes: &[u8], with_stubs: bool) -> usize {
    let start = [SYSCALL.as_slice(), &MARK].concat();
    // A word of zeros before a stub: nothing of the mapping's own ends there.
    let left = (8..bytes.len())
        .step_by(8)
        .filter(|_| with_stubs)
        .find(|at| bytes[*at..].starts_with(&start) && bytes[at - 8..*at] == [0; 8]);
    let used = bytes[..left.unwrap_or(bytes.len())].iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    // One word of zeros stays between.
    ((used + 15) & !7).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeros() -> user_regs_struct {
        // SAFETY: all-zero bytes are a value of this struct of integers.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn the_longest_stub_has_its_length() {
        let undo = [Undo::Unmap { start: 1, len: 2 }; MIN_UNDO];
        let longest = code(&zeros(), 0, Makes::Mapping { len: 1 }, &undo);
        assert!(longest.len() <= len(MIN_UNDO), "{} {}", longest.len(), len(MIN_UNDO));
        let shortest = code(&zeros(), 0, Makes::Nothing, &[]);
        assert_eq!(shortest.len(), CALL_LEN + MARK.len() + TAIL_LEN);
        let room = Room { address: 0, len: VISITOR_LEN + len(9) };
        assert_eq!((room.undo(), room.anchor()), (9, VISITOR_LEN as u64));
        assert!(shortest.len() <= VISITOR_LEN);
    }

    #[test]
    fn a_stub_that_was_left_is_unused_room() {
        let mut page = [0u8; 512];
        page[..100].fill(7);
        let clean = unused_from(&page, true);
        assert_eq!(clean, 112);
        let stub = code(&zeros(), u64::MAX, Makes::Nothing, &[Undo::Close { number: 3 }]);
        // The first stub of that room, as a killed tracer leaves it.
        let at = clean + VISITOR_LEN;
        page[at..at + stub.len()].copy_from_slice(&stub);
        assert_eq!(unused_from(&page, true), clean);
        assert!(unused_from(&page, false) >= at + stub.len());
        assert_eq!(unused_from(&[1; 64], true), 64);
    }
}
