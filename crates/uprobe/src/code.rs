//! Where a function begins and ends, from its instructions.
//!
//! Owns: finding the instructions at which a function is left. Promises: an address is named only if the whole function
//! decodes from its first byte to its last, and every jump in it that stays in it leads to the start of an instruction; so
//! what is named is an instruction, and a probe there breaks nothing. Exits are return instructions and jumps out of the
//! function (tail calls). Refuses: functions of unknown length, and more exits than [`EXITS`]. An indirect jump may be
//! a `switch` or a tail call: it is no exit, so an execution that ends by one is not measured.

use crate::EXITS;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;

/// Longest function that is decoded, in bytes.
pub const MAX_CODE: usize = 1 << 20;

/// A place to probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Bytes from the start of the function.
    pub offset: u64,
    /// The kernel runs this instruction itself; others it steps, which takes exceptions more and several times as long.
    pub emulated: bool,
    /// Bytes that the function has put on its stack by then.
    pub pushed: u32,
}

/// The places to probe of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// A place that each execution passes once, at its beginning: the first instruction if need be, else the first one that the
    /// kernel runs itself.
    pub entry: Place,
    /// Its exits in the order of their addresses; none if they are not known for certain, or are too many.
    pub exits: Vec<Place>,
    /// It was understood from end to end, so it has no other returns.
    pub whole: bool,
    /// It jumps back to its first instruction, so passing the entry need not be an entry.
    pub loops: bool,
}

/// The shape of a function with this code. `code` may be just the first bytes if the length is not known (`whole` is false).
pub fn shape(code: &[u8], whole: bool) -> Shape {
    let first = Place { offset: 0, emulated: emulated(code), pushed: 0 };
    let known = if whole && code.len() <= MAX_CODE { decode(code) } else { None };
    let Some((exits, targets)) = known else {
        return Shape { entry: first, ..Shape::default() };
    };
    let entry = beginning(code, &targets).unwrap_or(first);
    let whole = exits.len() <= EXITS;
    Shape { entry, exits: if whole { exits } else { Vec::new() }, whole, loops: targets.contains(&0) }
}

/// The first instruction that the kernel runs itself, if every execution passes it, and once.
fn beginning(code: &[u8], targets: &BTreeSet<u64>) -> Option<Place> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut pushed = 0u32;
    while decoder.can_decode() {
        let at = decoder.decode();
        let offset = at.ip();
        if offset > 0 && targets.contains(&offset) {
            return None;
        }
        if emulated(&code[offset as usize..]) {
            return Some(Place { offset, emulated: true, pushed });
        }
        let stack = at.op0_kind() == OpKind::Register && at.op0_register() == Register::RSP;
        match at.mnemonic() {
            Mnemonic::Sub if stack => pushed = pushed.checked_add(u32::try_from(at.try_immediate(1).ok()?).ok()?)?,
            Mnemonic::Push => pushed = pushed.checked_add(8)?,
            _ if stack || at.is_stack_instruction() || at.flow_control() != FlowControl::Next => return None,
            _ => {}
        }
    }
    None
}

/// Exits, and targets of jumps inside; nothing if the code is not understood from end to end.
fn decode(code: &[u8]) -> Option<(Vec<Place>, BTreeSet<u64>)> {
    let size = code.len() as u64;
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let (mut starts, mut targets) = (BTreeSet::new(), BTreeSet::new());
    let mut exits = Vec::new();
    let mut at = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut at);
        if at.is_invalid() {
            return None;
        }
        starts.insert(at.ip());
        let exit = match at.flow_control() {
            FlowControl::Return => true,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                let target = at.near_branch_target();
                // A jump back to the very start is a loop of the function's, or a call of itself in tail position.
                let inside = target < size;
                if inside {
                    targets.insert(target);
                }
                !inside && at.flow_control() == FlowControl::UnconditionalBranch
            }
            _ => false,
        };
        if exit {
            let offset = at.ip();
            exits.push(Place { offset, emulated: emulated(&code[offset as usize..]), pushed: 0 });
        }
    }
    targets.is_subset(&starts).then_some((exits, targets))
}

/// Whether the kernel runs the instruction itself: pushes of registers, one-byte no-ops, near jumps and calls.
fn emulated(code: &[u8]) -> bool {
    match code {
        [0x41, 0x50..=0x57, ..] | [0x50..=0x57 | 0x90 | 0x70..=0x7f | 0xe8 | 0xe9 | 0xeb, ..] => true,
        [0x0f, second, ..] => (0x80..=0x8f).contains(second),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_and_jumps_out_are_exits() {
        // push rbp; test edi,edi; je +1 (over ret); ret; pop rbp; jmp far behind; nop; ret
        let code = [0x55, 0x85, 0xff, 0x74, 0x01, 0xc3, 0x5d, 0xe9, 0x00, 0x10, 0x00, 0x00, 0x90, 0xc3];
        let s = shape(&code, true);
        assert_eq!(s.entry, Place { offset: 0, emulated: true, pushed: 0 });
        let exits: Vec<(u64, bool)> = s.exits.iter().map(|e| (e.offset, e.emulated)).collect();
        assert_eq!(exits, [(5, false), (7, true), (13, false)]);
    }

    #[test]
    fn what_is_not_understood_has_no_exits() {
        // A jump into the middle of an instruction; a truncated instruction; no known length.
        for (code, whole) in
            [(&[0x74u8, 0x01, 0x85, 0xff, 0xc3][..], true), (&[0xc3, 0x48][..], true), (&[0x55, 0xc3][..], false)]
        {
            let s = shape(code, whole);
            assert!(s.exits.is_empty() && s.entry.offset == 0, "{code:x?}: {s:?}");
        }
        assert!(shape(&[0xc3; EXITS + 1], true).exits.is_empty(), "too many to be told apart");
    }

    #[test]
    fn an_entry_is_passed_once_and_is_cheap_if_it_can_be() {
        // endbr64; push rbp; pop rbp; ret
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x5d, 0xc3];
        assert_eq!(shape(&code, true).entry, Place { offset: 4, emulated: true, pushed: 0 });
        // The same with a loop back to the push: each turn would count as an entry.
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x5d, 0xeb, 0xfc, 0xc3];
        assert_eq!(shape(&code, true).entry.offset, 0);
        // sub rsp,0x18; test edi,edi; je +0; add rsp,0x18; ret
        let code = [0x48, 0x83, 0xec, 0x18, 0x85, 0xff, 0x74, 0x00, 0x48, 0x83, 0xc4, 0x18, 0xc3];
        assert_eq!(shape(&code, true).entry, Place { offset: 6, emulated: true, pushed: 0x18 });
        // mov eax,edi; ret
        assert_eq!(shape(&[0x89, 0xf8, 0xc3], true).entry, Place::default());
        // and rsp,-32; je +0; ret: how much is on the stack depends
        let code = [0x48, 0x83, 0xe4, 0xe0, 0x74, 0x00, 0xc3];
        assert_eq!(shape(&code, true).entry.offset, 0);
    }

    #[test]
    fn a_loop_to_the_very_start_is_told() {
        // inc dword [rdi]; jmp back to the start: left by nothing
        let s = shape(&[0xff, 0x07, 0xeb, 0xfc], true);
        assert!(s.loops && s.whole && s.exits.is_empty(), "{s:?}");
        assert!(!shape(&[0x55, 0x5d, 0xc3], true).loops);
    }

    #[test]
    fn rubbish_and_empty_code_do_no_harm() {
        assert!(shape(&[], true).exits.is_empty());
        let mut x = 7u64;
        for len in 0..600 {
            let code: Vec<u8> = (0..len)
                .map(|_| {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (x >> 56) as u8
                })
                .collect();
            let s = shape(&code, true);
            assert!(s.exits.iter().all(|e| (e.offset as usize) < len));
        }
    }
}
