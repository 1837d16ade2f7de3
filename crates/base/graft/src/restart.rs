//! A call that a stop has interrupted, and how it continues.
//!
//! Pure functions on registers. The kernel leaves one of four numbers in `rax` of a thread that was
//! stopped in a call, and makes the call again when the thread continues from there, as far as no
//! handler of a signal runs first. Elsewhere it would take these numbers for the call's result. So
//! registers exist in two forms: as the kernel left them, and *settled*: those of a thread that is
//! about to make the call (again), from which it can continue anywhere.

use libc::user_regs_struct;

/// How the kernel continues a call that was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// `ERESTARTSYS`: made again, also after a handler with `SA_RESTART`; after another the call
    /// fails with `EINTR`.
    UnlessHandled,
    /// `ERESTARTNOINTR`: made again in all cases.
    Always,
    /// `ERESTARTNOHAND`: made again unless any handler runs.
    IfNoHandler,
    /// `ERESTART_RESTARTBLOCK`: continued by `restart_syscall` with the time that is left.
    RestOfTime,
}

/// The call that a stopped thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// The number of the call.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// How it continues.
    pub restart: Restart,
}

impl Restart {
    /// By the number that the kernel left in `rax`.
    pub(crate) fn of(rax: u64) -> Option<Restart> {
        match rax as i64 {
            -512 => Some(Restart::UnlessHandled),
            -513 => Some(Restart::Always),
            -514 => Some(Restart::IfNoHandler),
            -516 => Some(Restart::RestOfTime),
            _ => None,
        }
    }
}

/// The call that a thread with these registers, as the kernel left them, was interrupted in.
pub(crate) fn interrupted(registers: &user_regs_struct) -> Option<Interrupted> {
    if (registers.orig_rax as i64) < 0 {
        return None;
    }
    let restart = Restart::of(registers.rax)?;
    let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
    Some(Interrupted { number: registers.orig_rax as i64, arguments, restart })
}

/// Bytes of the instructions that make a call: `syscall`, and `int $0x80`.
const CALL_LEN: u64 = 2;
/// Marks the numbers of x32 calls.
const X32: u64 = 0x4000_0000;

/// Settles registers as the kernel left them. `by_int80`: the call was made by `int $0x80`, which
/// has numbers of its own.
pub(crate) fn settled(registers: &user_regs_struct, by_int80: bool) -> user_regs_struct {
    let mut settled = *registers;
    let Some(call) = interrupted(registers) else { return settled };
    settled.rip -= CALL_LEN;
    settled.orig_rax = u64::MAX;
    settled.rax = match call.restart {
        Restart::RestOfTime if by_int80 => 0,
        Restart::RestOfTime => libc::SYS_restart_syscall as u64 | (registers.orig_rax & X32),
        _ => registers.orig_rax,
    };
    settled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(number: i64, result: i64) -> user_regs_struct {
        // SAFETY: all-zero bytes are a value of this struct of integers.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        (registers.rip, registers.orig_rax, registers.rax) = (0x1002, number as u64, result as u64);
        registers
    }

    #[test]
    fn interrupted_calls_are_made_again() {
        for (number, result, rax) in [(0, -512, 0), (56, -513, 56), (34, -514, 34), (35, -516, 219)] {
            let settled = settled(&stopped(number, result), false);
            assert_eq!((settled.rip, settled.rax, settled.orig_rax), (0x1000, rax, u64::MAX), "{number} {result}");
        }
        assert_eq!(settled(&stopped(162, -516), true).rax, 0);
        assert_eq!(settled(&stopped(35 | 0x4000_0000, -516), false).rax, 219 | 0x4000_0000);
    }

    #[test]
    fn others_stay_as_they_are() {
        for (number, result) in [(0, 7), (0, -4), (-1, -512)] {
            let after = settled(&stopped(number, result), false);
            assert_eq!((after.rip, after.rax as i64, after.orig_rax as i64), (0x1002, result, number));
        }
    }
}
