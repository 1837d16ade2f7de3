//! Where it is seen that a function has returned, in its caller.
//!
//! Of an exit that has no posts ([`super::posts`]), since a call or a loop leads up to it, the
//! first instruction that the kernel runs itself *behind* the call is probed, if nobody comes there
//! but from the call; else the very first, which is stepped, if nothing else comes there. Where
//! others come by too, as behind a call that is made now and then, the cheap one is named beside:
//! how often they do only a try shows. Promises: the control flow of the caller leads there from
//! its first byte, past the call, and comes from the call through no jump or call. Refuses: callers
//! whose flow does not lead to the return address.

use super::posts::ahead_of;
use super::{Above, Place, Read, Walk, emulated};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory};

/// Instructions after the call among which it is searched for.
const MAX_INSTRUCTIONS_AFTER: usize = 32;

/// Bytes of an instruction.
const MAX_INSTRUCTION_BYTES: u64 = 15;

/// Where to probe to see that a call has returned; at least one of both. The address on the stack
/// is that of the called function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// Passed once for each return, and at no other time.
    pub own: Option<Place>,
    /// Passed for each return too, and by others: but the kernel need not step it, as it must the
    /// other.
    pub shared: Option<Place>,
}

/// Where to probe in a caller with this code, which begins at this address, to see that what
/// returns to `back` did.
pub fn behind(code: &[u8], address: u64, back: u64, memory: Read<'_>) -> Option<Return> {
    let first = back.checked_sub(address).filter(|&at| at < code.len() as u64)?;
    let (walk, _) = Walk::along(code, address, memory)?;
    // Nothing among whose bytes other instructions that were reached begin or end.
    let alone = |at: u64| {
        let inside = |(from, i): (&u64, &Instruction)| from + i.len() as u64 > at;
        walk.reached.contains_key(&at) && !walk.reached.range(at.saturating_sub(MAX_INSTRUCTION_BYTES)..at).any(inside)
    };
    // The stack pointer is above it once it was taken.
    let taken = Above { frame: false, bytes: -8 };
    let place = |offset, above, emulated| Place { offset, emulated, above, ..Place::default() };
    let cheap = cheap(&walk, first).filter(|(at, _)| alone(*at)).and_then(|(at, moved)| {
        let above = Above { bytes: taken.bytes.checked_sub(moved)?, ..taken };
        Some(place(at, above, true))
    });
    let met = |p: &Place| walk.targets.range(first..=p.offset).next().is_some();
    let stepped = place(first, taken, false);
    let found = match cheap {
        Some(cheap) if !met(&cheap) => Return { own: Some(cheap), shared: None },
        // What comes next after a call that is made now and then may begin right behind it: others
        // come by at its very first instruction.
        shared => Return { own: Some(stepped).filter(|p| alone(first) && !met(p)), shared },
    };
    (found.own.is_some() || found.shared.is_some()).then_some(found)
}

/// The first instruction from here on that the kernel runs itself, and by how much the stack
/// pointer is moved up to it; nothing if another comes first from which the control flow may go
/// elsewhere.
fn cheap(walk: &Walk<'_>, mut at: u64) -> Option<(u64, i32)> {
    let mut info = InstructionInfoFactory::new();
    let mut moved = 0i32;
    for _ in 0..MAX_INSTRUCTIONS_AFTER {
        let i = walk.reached.get(&at)?;
        if emulated(&walk.code[at as usize..]) {
            return Some((at, moved));
        }
        if i.flow_control() != FlowControl::Next || i.has_rep_prefix() || i.has_repne_prefix() {
            return None;
        }
        let by = ahead_of(&mut info, i, Above::default()).filter(|by| !by.frame)?;
        moved = moved.checked_add(by.bytes)?;
        at += i.len() as u64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offset from behind the call on, and where the return address lies.
    type At = (u64, i32);

    /// What is probed behind the call of a function with `before` ahead of it.
    fn behind_call(before: &[u8], rest: &[u8]) -> Option<At> {
        let (own, shared) = all_behind_call(before, rest)?;
        assert_eq!(shared, None);
        own
    }

    /// The same, and where others come by too.
    fn all_behind_call(before: &[u8], rest: &[u8]) -> Option<(Option<At>, Option<At>)> {
        let code = [before, &[0xe8, 0, 0x10, 0, 0], rest].concat();
        let back = before.len() as u64 + 5;
        let place_of = |place: Place| {
            assert!(!place.above.frame && place.exit.is_none(), "{place:?}");
            assert_eq!(place.emulated, emulated(&code[place.offset as usize..]), "{place:?}");
            (place.offset - back, place.above.bytes)
        };
        let found = behind(&code, 0x1000, 0x1000 + back, &|_, _| Vec::new())?;
        Some((found.own.map(place_of), found.shared.map(place_of)))
    }

    #[test]
    fn where_others_come_by_it_is_said() {
        // je over the call; the call; add ebx,eax; (from the jump:) test ebx,ebx; jne +0; ret
        let rest = [0x01, 0xc3, 0x85, 0xdb, 0x75, 0, 0xc3];
        assert_eq!(all_behind_call(&[0x74, 7], &rest), Some((Some((0, -8)), Some((4, -8)))));
        // To the add: the call's own return is met.
        assert_eq!(all_behind_call(&[0x74, 5], &rest), Some((None, Some((4, -8)))));
        // So it is, and nothing cheap follows.
        assert_eq!(all_behind_call(&[0x74, 5], &[0x01, 0xc3, 0xc3]), None);
        // Behind the jump: by nothing else.
        assert_eq!(all_behind_call(&[0x74, 11], &rest), Some((Some((4, -8)), None)));
    }

    #[test]
    fn the_first_cheap_instruction_behind_the_call() {
        // push rbp ahead. test eax,eax; je +0; pop rbp; ret
        assert_eq!(behind_call(&[0x55], &[0x85, 0xc0, 0x74, 0, 0x5d, 0xc3]), Some((2, -8)));
        // add rsp,0x18; pop rbp; jmp out; or a push, a call
        assert_eq!(behind_call(&[0x55], &[0x48, 0x83, 0xc4, 0x18, 0x5d, 0xe9, 0, 0x10, 0, 0]), Some((5, -40)));
        assert_eq!(behind_call(&[0x55], &[0x50, 0xc3]), Some((0, -8)));
        assert_eq!(behind_call(&[0x55], &[0x89, 0xc7, 0xe8, 0, 0x20, 0, 0, 0xc3]), Some((2, -8)));
        // A return comes first, an indirect call, a system call, a copy of unknown length, the
        // stack pointer from elsewhere, or too much: stepped.
        for first in
            [&[0xc3][..], &[0xff, 0xd0], &[0x0f, 0x05], &[0xf3, 0xa4], &[0x48, 0x89, 0xcc], &[0x89, 0xc7].repeat(40)]
        {
            assert_eq!(behind_call(&[0x55], &[first, &[0x90, 0xc3]].concat()), Some((0, -8)), "{first:x?}");
        }
    }

    #[test]
    fn only_where_the_flow_leads() {
        // jmp over the call: nobody comes by there.
        assert_eq!(behind_call(&[0xeb, 6], &[0x90, 0xc3]), None);
        let code = [0xe8, 0, 0x10, 0, 0, 0x90, 0xc3];
        let at = |back| behind(&code, 0x1000, back, &|_, _| Vec::new()).and_then(|r| Some(r.own?.offset));
        // In the middle of an instruction, outside, at the very end.
        assert_eq!((at(0x1005), at(0x1002), at(0xfff), at(0x1007)), (Some(5), None, None, None));
        // A jump ahead reads the no-op behind the call and `mov eax, eax` as a part of another
        // instruction; or begins at it.
        let rest = [&[0x89, 0xc0][..], &[0x90; 10], &[0xc3]].concat();
        assert_eq!(behind_call(&[0x74, 6], &rest), Some((0, -8)));
        assert_eq!(all_behind_call(&[0x74, 7], &rest), Some((Some((0, -8)), Some((2, -8)))));
        // Whoever is called last does not return.
        assert_eq!(behind_call(&[0x55], &[]), None);
    }
}
