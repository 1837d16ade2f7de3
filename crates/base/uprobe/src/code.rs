//! Where a function begins and ends, from its instructions.
//!
//! Owns: finding the instructions at which a function is left. Promises: an address is named only
//! if the control flow leads there from the function's first byte, by falling through, by direct
//! jumps, and by the tables of a `switch`; constants among the code are not reached, so a probe
//! breaks nothing. Exits are return instructions and jumps out of the function (tail calls). They
//! are named all or not at all: what nothing is seen to lead to (constants, landing pads of
//! exceptions, a `switch` whose table was not found) must hold none. Refuses: functions of unknown
//! length, and more exits than [`EXITS`]. An indirect jump without a table may be a `switch` or a
//! tail call, and a conditional jump out of the function is taken now and then: they are no exits,
//! so an execution that ends by one is not measured.

mod behind;
mod posts;

use crate::EXITS;
pub use behind::{Return, behind};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
pub use posts::Above;
use posts::Exits;
use std::collections::{BTreeMap, BTreeSet};

/// Longest function that is decoded, in bytes.
pub const MAX_CODE: usize = 1 << 20;
/// Entries of a `switch`'s table that are read at most.
const MAX_TABLE: usize = 4096;
/// Indirect jumps of a function, entries of their tables in all, and instructions before one among
/// which its table's address is searched for: with more it is not understood.
const MAX_JUMPS: usize = 1024;
const MAX_CASES: usize = 1 << 16;
const MAX_DISTANCE_TO_TABLE: usize = 1 << 14;
/// Instructions before an indirect jump among which the one that reads the table is searched for.
const MAX_DISTANCE_TO_READ: usize = 12;

/// Reads the program's memory: up to so many bytes from an address on, fewer where less can be
/// read.
pub type Read<'a> = &'a dyn Fn(u64, usize) -> Vec<u8>;

/// A place to probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Bytes from the start of the function.
    pub offset: u64,
    /// The kernel runs this instruction itself; others it steps, which takes exceptions more and
    /// several times as long.
    pub emulated: bool,
    /// It is a plain return, which the probe carries out itself where the kernel lets it.
    pub returns: bool,
    /// Where the activation's return address lies then.
    pub above: Above,
    /// The exit that the control flow continues to from here, by its number in the order of their
    /// addresses. It may be the entry's too, of a short function.
    pub exit: Option<u8>,
    /// So it goes only where this condition holds, by its number in the instruction set; else it
    /// stays in the function.
    pub only_if: Option<u8>,
}

/// The places to probe of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Where the function begins in the program's memory.
    pub address: u64,
    /// A place that each execution passes once, at its beginning: the first instruction if need be,
    /// else the first one that the kernel runs itself.
    pub entry: Place,
    /// How many exits it has; none if they are not known for certain, or are too many.
    pub exits: usize,
    /// Where to probe to see it left: of each exit the instruction itself, or places shortly before
    /// it that the kernel runs itself.
    pub ends: Vec<Place>,
    /// It was understood from end to end, so it has no other returns; and where it
    /// [`loops`](Shape::loops), no other way out but an exception or `longjmp`.
    pub whole: bool,
    /// It jumps back to its first instruction, so passing the entry need not be an entry.
    pub loops: bool,
}

impl Shape {
    /// Whether the kernel has to step one of its ends.
    pub fn stepped(&self) -> bool {
        self.ends.iter().any(|e| !e.emulated)
    }
}

/// The shape of a function with this code, which begins at this address of the program. `code` may
/// be just the first bytes if the length is not known (`whole` is false). `memory`: the program's,
/// for the tables of a `switch`.
pub fn shape(code: &[u8], whole: bool, address: u64, memory: Read<'_>) -> Shape {
    let first = Place { emulated: emulated(code), ..Place::default() };
    let known = if whole && code.len() <= MAX_CODE { Walk::of(code, address, memory) } else { None };
    let Some((walk, others)) = known else {
        return Shape { address, entry: first, ..Shape::default() };
    };
    let mut entry = beginning(code, &walk.targets).unwrap_or(first);
    let loops = walk.targets.contains(&0);
    let exits = walk.exits();
    // An entry after a way out that is no exit would be one more turn.
    let whole = exits.len() <= EXITS && !(loops && others);
    if !whole {
        return Shape { address, entry, loops, ..Shape::default() };
    }
    let mut ends = walk.ends(&exits);
    if let Some(at) = ends.iter().position(|e| e.offset == entry.offset) {
        // One probe does for both.
        let end = ends.remove(at);
        (entry.exit, entry.only_if) = (end.exit, end.only_if);
    }
    Shape { address, entry, exits: exits.len(), ends, whole, loops }
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
            let above = Above { frame: false, bytes: i32::try_from(pushed).ok()? };
            return Some(Place { offset, emulated: true, above, ..Place::default() });
        }
        let stack = at.op0_kind() == OpKind::Register && at.op0_register() == Register::RSP;
        match at.mnemonic() {
            Mnemonic::Sub if stack => pushed = pushed.checked_add(u32::try_from(at.try_immediate(1).ok()?).ok()?)?,
            Mnemonic::Push => pushed = pushed.checked_add(8)?,
            // Go compares it with the stack's end first.
            Mnemonic::Cmp => {}
            _ if stack || at.is_stack_instruction() || at.flow_control() != FlowControl::Next => return None,
            _ => {}
        }
    }
    None
}

/// A walk along the control flow of a function. Places are offsets from its first byte.
struct Walk<'a> {
    code: &'a [u8],
    address: u64,
    /// Instructions that were reached.
    reached: BTreeMap<u64, Instruction>,
    /// Where jumps inside lead.
    targets: BTreeSet<u64>,
    /// Where the cases of a `switch`, or jumps of what was not reached, lead.
    strange: BTreeSet<u64>,
    /// Indirect jumps that were reached.
    indirect: Vec<u64>,
}

impl<'a> Walk<'a> {
    /// The walk if no exits are missing. And whether the function may be left by a jump that is no
    /// exit: one that is taken now and then, or whose target is not known.
    fn of(code: &'a [u8], address: u64, memory: Read<'_>) -> Option<(Walk<'a>, bool)> {
        let (mut walk, unknown) = Walk::along(code, address, memory)?;
        walk.rest(unknown)?;
        let now_and_then =
            |i: &Instruction| i.flow_control() == FlowControl::ConditionalBranch && walk.inside(i).is_none();
        let others = unknown || walk.reached.values().any(now_and_then);
        Some((walk, others))
    }

    /// The walk, and whether it lacks the target of an indirect jump; nothing if what is reached is
    /// not understood.
    fn along(code: &'a [u8], address: u64, memory: Read<'_>) -> Option<(Walk<'a>, bool)> {
        let mut walk = Walk {
            code,
            address,
            reached: BTreeMap::new(),
            targets: BTreeSet::new(),
            strange: BTreeSet::new(),
            indirect: Vec::new(),
        };
        walk.follow(vec![0])?;
        let starts = walk.sweep();
        let (mut jumps, mut sum, mut unknown) = (0, 0, false);
        while let Some(at) = walk.indirect.pop() {
            let cases = walk.cases(at, &starts, memory);
            unknown |= cases.is_empty();
            (jumps, sum) = (jumps + 1, sum + cases.len());
            if jumps > MAX_JUMPS || sum > MAX_CASES {
                return None;
            }
            walk.targets.extend(&cases);
            walk.strange.extend(&cases);
            walk.follow(cases)?;
        }
        Some((walk, unknown))
    }

    /// The exits: returns, and jumps out of the function.
    fn exits(&self) -> Vec<u64> {
        let leaves = |i: &Instruction| match i.flow_control() {
            FlowControl::Return => true,
            FlowControl::UnconditionalBranch => self.inside(i).is_none(),
            _ => false,
        };
        self.reached.iter().filter(|(_, i)| leaves(i)).map(|(at, _)| *at).collect()
    }

    /// Where to probe for these exits.
    fn ends(&self, exits: &[u64]) -> Vec<Place> {
        let mut flow = Exits::of(self);
        let mut ends = Vec::new();
        for (n, &offset) in exits.iter().enumerate() {
            let code = &self.code[offset as usize..];
            let itself = Place {
                offset,
                emulated: emulated(code),
                // Behind an operand size prefix some processors take two bytes from the stack.
                returns: matches!(code, [0xc3, ..] | [0xf3, 0xc3, ..]),
                ..Place::default()
            };
            let posts = if itself.emulated { None } else { flow.posts(offset) };
            let numbered = |place| Place { exit: Some(n as u8), ..place };
            ends.extend(posts.unwrap_or_else(|| vec![itself]).into_iter().map(numbered));
        }
        ends
    }

    /// Where the control flow continues from an instruction that was reached; nothing in place of
    /// what is out of the function. Nowhere after indirect jumps.
    fn next(&self, at: u64) -> Vec<Option<u64>> {
        let i = &self.reached[&at];
        let behind = Some(at + i.len() as u64).filter(|b| self.reached.contains_key(b));
        match i.flow_control() {
            FlowControl::Return | FlowControl::Exception | FlowControl::IndirectBranch => Vec::new(),
            FlowControl::UnconditionalBranch => vec![self.inside(i)],
            FlowControl::ConditionalBranch => vec![behind, self.inside(i)],
            FlowControl::Interrupt if i.mnemonic() == Mnemonic::Int3 => Vec::new(),
            _ => vec![behind],
        }
    }

    /// The instruction at a place, if it is one and ends before `end`.
    fn decode(&self, at: u64, end: usize) -> Option<Instruction> {
        let bytes = self.code.get(at as usize..end)?;
        let i = Decoder::with_ip(64, bytes, self.address.wrapping_add(at), DecoderOptions::NONE).decode();
        (!i.is_invalid()).then_some(i)
    }

    /// Where a direct jump or call leads.
    fn target(&self, i: &Instruction) -> Option<u64> {
        (i.op0_kind() == OpKind::NearBranch64).then(|| i.near_branch_target().wrapping_sub(self.address))
    }

    /// The same if that is inside the function.
    fn inside(&self, i: &Instruction) -> Option<u64> {
        self.target(i).filter(|&t| t < self.code.len() as u64)
    }

    /// Goes along from these places; nothing if what is reached is not understood.
    fn follow(&mut self, mut open: Vec<u64>) -> Option<()> {
        let size = self.code.len();
        while let Some(mut at) = open.pop() {
            while !self.reached.contains_key(&at) {
                let i = self.decode(at, size)?;
                self.reached.insert(at, i);
                at += i.len() as u64;
                let target = self.inside(&i);
                match i.flow_control() {
                    FlowControl::Return | FlowControl::Exception => break,
                    FlowControl::IndirectBranch => {
                        self.indirect.push(at - i.len() as u64);
                        break;
                    }
                    FlowControl::Interrupt if i.mnemonic() == Mnemonic::Int3 => break,
                    FlowControl::Call | FlowControl::IndirectCall => {
                        // A call into the function's own middle may be a jump over constants.
                        if target.is_some_and(|t| t != 0) {
                            return None;
                        }
                        // Whoever is called last does not return.
                        if at == size as u64 {
                            break;
                        }
                    }
                    flow => {
                        // A jump back to the very start is a loop of the function's, or a call of
                        // itself in tail position.
                        if let Some(t) = target {
                            self.targets.insert(t);
                            open.push(t);
                        }
                        if flow == FlowControl::UnconditionalBranch {
                            break;
                        }
                    }
                }
            }
        }
        Some(())
    }

    /// Where instructions begin if all is code.
    fn sweep(&self) -> BTreeSet<u64> {
        let decoder = Decoder::with_ip(64, self.code, 0, DecoderOptions::NONE);
        decoder.into_iter().filter(|i| !i.is_invalid()).map(|i| i.ip()).collect()
    }

    /// Where the indirect jump at this place leads by its table; none if no table is found. How
    /// long the table is nobody knows: it is read up to the first entry that leads to no
    /// instruction. One entry too many leads to an instruction all the same.
    fn cases(&self, jump: u64, starts: &BTreeSet<u64>, memory: Read<'_>) -> Vec<u64> {
        let Some((table, wide)) = self.table(jump) else {
            return Vec::new();
        };
        let size = self.code.len() as u64;
        // Constants among the code are not trusted.
        if table.wrapping_sub(self.address) < size {
            return Vec::new();
        }
        let width = if wide { 8 } else { 4 };
        let bytes = memory(table, MAX_TABLE * width);
        let leads_to = |e: &[u8]| {
            let absolute = match *e {
                [a, b, c, d] => table.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into()),
                [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
                _ => return u64::MAX,
            };
            absolute.wrapping_sub(self.address)
        };
        bytes.chunks_exact(width).map(leads_to).take_while(|t| *t < size && starts.contains(t)).collect()
    }

    /// The table that an indirect jump goes by, as compilers write it: its address, and whether its
    /// entries are addresses of 8 bytes; else they are of 4 bytes and count from the table.
    fn table(&self, jump: u64) -> Option<(u64, bool)> {
        let at = self.reached.get(&jump)?;
        if at.op0_kind() == OpKind::Memory {
            return Some((self.addresses(jump, at)?, true));
        }
        let to = at.op0_register();
        let mut before = self.reached.range(..jump).rev().take(MAX_DISTANCE_TO_READ);
        let (mut place, mut i) = before.find(|(_, i)| i.op0_kind() == OpKind::Register && i.op0_register() == to)?;
        if i.mnemonic() == Mnemonic::Mov && i.op1_kind() == OpKind::Memory {
            return Some((self.addresses(*place, i)?, true));
        }
        if i.mnemonic() != Mnemonic::Add || i.op1_kind() != OpKind::Register {
            return None;
        }
        let parts = [to, i.op1_register()];
        (place, i) = before.find(|(_, i)| i.mnemonic() == Mnemonic::Movsxd && parts.contains(&i.op0_register()))?;
        let fits = i.op1_kind() == OpKind::Memory
            && i.memory_index_scale() == 4
            && i.memory_displacement64() == 0
            && parts.contains(&i.memory_base());
        if fits { Some((self.loaded(*place, i.memory_base())?, false)) } else { None }
    }

    /// The table of addresses that a memory operand reads.
    fn addresses(&self, place: u64, i: &Instruction) -> Option<u64> {
        if i.memory_index() == Register::None || i.memory_index_scale() != 8 {
            return None;
        }
        match (i.memory_base(), i.memory_displacement64()) {
            (Register::None, at) => Some(at),
            (base, 0) => self.loaded(place, base),
            _ => None,
        }
    }

    /// The address that was put into a register last before this place.
    fn loaded(&self, place: u64, register: Register) -> Option<u64> {
        let puts = |i: &&Instruction| {
            i.mnemonic() == Mnemonic::Lea && i.op0_register() == register && i.is_ip_rel_memory_operand()
        };
        let i = self.reached.range(..place).rev().take(MAX_DISTANCE_TO_TABLE).map(|(_, i)| i).find(puts)?;
        Some(i.ip_rel_memory_address())
    }

    /// Searches what was not reached; nothing if an execution might end there, or if two
    /// instructions that were reached overlap. `unknown`: an indirect jump may lead there; else
    /// only an exception can, whose way into a part that was split off is no exit.
    fn rest(&mut self, unknown: bool) -> Option<()> {
        let size = self.code.len() as u64;
        let mut end = 0;
        let mut gaps = Vec::new();
        for (at, len) in self.reached.iter().map(|(at, i)| (*at, i.len() as u64)).chain([(size, 0)]) {
            if at < end {
                return None;
            }
            gaps.push(end..at);
            end = at + len;
        }
        for gap in gaps {
            let mut at = gap.start;
            while at < gap.end {
                let i = self.decode(at, gap.end as usize)?;
                let target = self.target(&i);
                match i.flow_control() {
                    FlowControl::Return => return None,
                    FlowControl::UnconditionalBranch if unknown && target.is_none_or(|t| t >= size) => return None,
                    FlowControl::Call => {}
                    _ if target == Some(0) => return None,
                    _ => {
                        self.targets.extend(target.filter(|&t| t < size));
                        self.strange.extend(target.filter(|&t| t < size));
                    }
                }
                at += i.len() as u64;
            }
        }
        Some(())
    }
}

/// Whether the kernel runs the instruction itself: pushes of registers, one-byte no-ops, near jumps
/// and calls.
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

    /// Of a function that goes by no tables.
    fn plain(code: &[u8], whole: bool) -> Shape {
        shape(code, whole, 0x1000, &|_, _| panic!("there is no table"))
    }

    /// A place whose instruction the kernel runs itself.
    fn emulated_at(offset: u64, pushed: i32) -> Place {
        let above = Above { frame: false, bytes: pushed };
        Place { offset, emulated: true, above, ..Place::default() }
    }

    #[test]
    fn returns_and_jumps_out_are_exits() {
        // push rbp; test edi,edi; je +1 (over ret); ret; pop rbp; js +5 (over jmp); jmp far behind;
        // ret
        let code = [0x55, 0x85, 0xff, 0x74, 0x01, 0xc3, 0x5d, 0x78, 0x05, 0xe9, 0x00, 0x10, 0x00, 0x00, 0xc3];
        let s = plain(&code, true);
        assert_eq!(s.entry, emulated_at(0, 0));
        // The returns are certain behind the jumps that lead to them: equal or not, sign or not.
        let post =
            |offset, exit, condition| Place { exit: Some(exit), only_if: Some(condition), ..emulated_at(offset, 0) };
        let jump = Place { exit: Some(1), ..emulated_at(9, 0) };
        assert_eq!((s.exits, &s.ends[..]), (3, &[post(3, 0, 5), jump, post(7, 2, 8)][..]));
        // Calls lead up to these. repz ret; ret 8; retw: one is plain
        let call = [0xe8, 0, 1, 0, 0];
        let code =
            [&[0x74, 0x07][..], &call, &[0xf3, 0xc3, 0x74, 0x08], &call, &[0xc2, 8, 0], &call, &[0x66, 0xc3]].concat();
        let ends = plain(&code, true).ends;
        assert_eq!(
            ends.iter().map(|e| (e.offset, e.returns)).collect::<Vec<_>>(),
            [(7, true), (16, false), (24, false)]
        );
    }

    #[test]
    fn what_is_not_understood_has_no_exits() {
        // A jump into the middle of an instruction; a truncated instruction; no known length.
        for (code, whole) in
            [(&[0x74u8, 0x01, 0x85, 0xff, 0xc3][..], true), (&[0xc3, 0x48][..], true), (&[0x55, 0xc3][..], false)]
        {
            let s = plain(code, whole);
            assert!(s.ends.is_empty() && s.entry.offset == 0, "{code:x?}: {s:?}");
        }
        assert!(plain(&[0xc3; EXITS + 1], true).ends.is_empty(), "too many to be distinguished");
    }

    #[test]
    fn an_entry_is_passed_once_and_is_cheap_if_it_can_be() {
        // endbr64; push rbp; pop rbp; ret
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x5d, 0xc3];
        // From there on it only goes out.
        assert_eq!(plain(&code, true).entry, Place { exit: Some(0), ..emulated_at(4, 0) });
        // The same with a loop back to the push: each turn would count as an entry.
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x5d, 0xeb, 0xfc, 0xc3];
        assert_eq!(plain(&code, true).entry.offset, 0);
        // sub rsp,0x18; test edi,edi; je +0; add rsp,0x18; ret
        let code = [0x48, 0x83, 0xec, 0x18, 0x85, 0xff, 0x74, 0x00, 0x48, 0x83, 0xc4, 0x18, 0xc3];
        assert_eq!(plain(&code, true).entry, Place { exit: Some(0), ..emulated_at(6, 0x18) });
        // mov eax,edi; ret
        assert_eq!(plain(&[0x89, 0xf8, 0xc3], true).entry, Place::default());
        // cmp rsp,[r14+0x10]; jbe to the jump back; push rbp; pop rbp; ret; call more stack; jmp
        // back to the start: Go's
        let code = [0x49, 0x3b, 0x66, 0x10, 0x76, 3, 0x55, 0x5d, 0xc3, 0xe8, 0, 1, 0, 0, 0xeb, 0xf0];
        let s = plain(&code, true);
        assert!(s.entry == emulated_at(4, 0) && s.loops && s.whole, "{s:?}");
        // and rsp,-32; je +0; ret: how much is on the stack depends
        let code = [0x48, 0x83, 0xe4, 0xe0, 0x74, 0x00, 0xc3];
        assert_eq!(plain(&code, true).entry.offset, 0);
    }

    #[test]
    fn a_loop_to_the_first_instruction_is_found() {
        // inc dword [rdi]; jmp back to the start: left by nothing
        let s = plain(&[0xff, 0x07, 0xeb, 0xfc], true);
        assert!(s.loops && s.whole && s.exits == 0 && s.ends.is_empty(), "{s:?}");
        assert!(!plain(&[0x55, 0x5d, 0xc3], true).loops);
        // je back to the start; ret, jmp [rip], jne out: the latter two leave unseen.
        for (out, whole) in [(&[0xc3u8][..], true), (&[0xff, 0x25, 0, 0, 0, 0], false), (&[0x75, 0x7f, 0xc3], false)] {
            for (back, loops) in [(0xfc, true), (0xfe, false)] {
                let s = plain(&[&[0x85, 0xff, 0x74, back], out].concat(), true);
                assert_eq!((s.loops, s.whole), (loops, whole || !loops), "{s:?}");
            }
        }
    }

    /// How many exits there are, if they are known.
    fn exits(s: &Shape) -> Option<usize> {
        s.whole.then_some(s.exits)
    }

    #[test]
    fn constants_behind_a_jump_are_not_exits() {
        // push rbp; lea rax,[rip+5]; movzx eax,byte [rax+rdi]; jmp over four bytes; pop rbp; ret
        let mut code = vec![0x55, 0x48, 0x8d, 0x05, 0x06, 0, 0, 0, 0x0f, 0xb6, 0x04, 0x38, 0xeb, 0x04];
        code.extend([0x90, 0x41, 0x42, 0xf4, 0x5d, 0xc3]);
        assert_eq!(exits(&plain(&code, true)), Some(1));
        // The same with bytes that would be returns: they might be the code of a landing pad, so no
        // exits are known, and none is probed.
        code[14..18].fill(0xc3);
        let s = plain(&code, true);
        assert_eq!((exits(&s), s.ends.len(), s.entry.offset), (None, 0, 0));
        // As long as nothing is misread: jumps into two readings of the same bytes, a call over
        // constants.
        assert_eq!(exits(&plain(&[0x74, 0x01, 0xb8, 0x90, 0x90, 0x90, 0xc3, 0xc3], true)), None);
        assert_eq!(exits(&plain(&[0xe8, 2, 0, 0, 0, 0xc3, 0xc3, 0x58, 0xc3], true)), None);
        // Nothing follows a call that does not return, nor a trap; padding is none's.
        assert_eq!(exits(&plain(&[0x74, 0x01, 0xc3, 0xe8, 0, 1, 0, 0], true)), Some(1));
        assert_eq!(exits(&plain(&[0x74, 0x02, 0x0f, 0x0b, 0xc3, 0x66, 0x90, 0xcc], true)), Some(1));
        // The end is run over.
        assert_eq!(exits(&plain(&[0x74, 0x01, 0xc3, 0x90], true)), None);
    }

    #[test]
    fn the_cases_of_a_switch_are_reached_by_its_table() {
        // cmp edi,2; ja +0x13; lea rdx,[rip+..]; mov edi,edi; movsxd rax,[rdx+rdi*4]; add rax,rdx;
        // notrack jmp rax; ret (default)
        let mut code = vec![0x83, 0xff, 0x02, 0x77, 0x13, 0x48, 0x8d, 0x15, 0xf4, 0x0f, 0, 0, 0x89, 0xff, 0x48, 0x63];
        code.extend([0x04, 0xba, 0x48, 0x01, 0xd0, 0x3e, 0xff, 0xe0, 0xc3]);
        // Three cases: mov al,0; ret.
        code.extend([0xb0, 0, 0xc3, 0xb0, 1, 0xc3, 0xb0, 2, 0xc3]);
        // The table of three lies at 0x2000 of a function at 0x1000, and is followed by that of
        // another function.
        let entries = [25i32 - 0x1000, 28 - 0x1000, 31 - 0x1000, 0x4000];
        let table: Vec<u8> = entries.iter().flat_map(|e| e.to_le_bytes()).collect();
        let read = |at: u64, len: usize| {
            assert_eq!(at, 0x2000);
            table[..len.min(table.len())].to_vec()
        };
        assert_eq!(exits(&shape(&code, true, 0x1000, &read)), Some(4));
        // It cannot be read: the cases might leave.
        assert_eq!(exits(&shape(&code, true, 0x1000, &|_, _| Vec::new())), None);
        // An entry that leads into an instruction ends the table, and what is left might leave.
        let read = |_: u64, _: usize| [25i32 - 0x1000, 29 - 0x1000].iter().flat_map(|e| e.to_le_bytes()).collect();
        assert_eq!(exits(&shape(&code, true, 0x1000, &read)), None);
        // Cases that only come back to the common end need no table.
        code[25..].copy_from_slice(&[0xb0, 0, 0x90, 0xb0, 1, 0x90, 0x90, 0xeb, 0xf6]);
        assert_eq!(exits(&shape(&code, true, 0x1000, &|_, _| Vec::new())), Some(1));
        // jmp [0x2000+rdi*8]: addresses.
        let code = [0xff, 0x24, 0xfd, 0, 0x20, 0, 0, 0xb0, 0, 0xc3, 0xb0, 1, 0xc3];
        let read = |at: u64, _: usize| match at {
            0x2000 => [0x1007u64, 0x100a, 0].iter().flat_map(|e| e.to_le_bytes()).collect(),
            _ => Vec::new(),
        };
        assert_eq!(exits(&shape(&code, true, 0x1000, &read)), Some(2));
    }

    #[test]
    fn many_indirect_jumps_take_no_time() {
        // je +2 (over the jump); jmp rax; again and again.
        let code: Vec<u8> = [0x74, 0x02, 0xff, 0xe0].into_iter().cycle().take(MAX_CODE).collect();
        let start = std::time::Instant::now();
        assert_eq!(exits(&plain(&code, true)), None);
        // A fraction of a second; with a time that grows as their square it would be hours.
        assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
        let some = |jumps: usize| [&code[..jumps * 4], &[0xc3]].concat();
        assert_eq!(exits(&plain(&some(MAX_JUMPS), true)), Some(1));
        assert_eq!(exits(&plain(&some(MAX_JUMPS + 1), true)), None);
    }

    #[test]
    fn rubbish_and_empty_code_do_no_harm() {
        assert!(plain(&[], true).ends.is_empty());
        let mut random = orbit_testing::Random::new(7);
        for len in 0..600 {
            let code = random.bytes(len);
            let s = shape(&code, true, 0x1000, &|_, len| vec![0; len]);
            assert!(s.ends.iter().all(|e| (e.offset as usize) < len));
        }
    }
}
