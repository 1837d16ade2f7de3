//! Where an execution is as good as over, at an instruction that costs little to probe.
//!
//! The kernel steps over a probed return instruction, which takes exceptions and ten times as long
//! as an instruction that it runs itself. So an exit is seen a few instructions earlier, at its
//! *posts*: pushes, no-ops, jumps, or one side of conditional jumps, from which the control flow
//! can only continue to that exit, through no call and no loop. Owns: finding them. Promises: each
//! execution that leaves by the exit passes one of its posts, and none that passes one stays: what
//! lies between takes no longer than its page faults. Refuses: exits that a call or a `switch`
//! leads up to, and a loop's own jump, which would be probed at each turn.

use super::{Place, Walk, emulated};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use std::collections::{BTreeMap, BTreeSet};

/// Steps along the control flow, for all exits of a function together: the search ends
/// there.
const MAX_STEPS: usize = 1 << 20;
/// Posts of an exit.
const MAX_POSTS: usize = 64;

/// Where an activation's return address lies, seen from a place in the function: so many bytes
/// above the stack pointer, or the frame pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Above {
    /// It is the frame pointer.
    pub frame: bool,
    /// Bytes; below if negative.
    pub bytes: i32,
}

/// The control flow that leads to a function's exits.
pub(super) struct Exits<'a> {
    walk: &'a Walk<'a>,
    /// Where it comes from, by where it leads.
    before: BTreeMap<u64, Vec<u64>>,
    /// Of instructions from which it leads only out, through no call and no loop: where the return
    /// address lies before them.
    tails: BTreeMap<u64, Option<Above>>,
    steps: usize,
    info: InstructionInfoFactory,
}

impl<'a> Exits<'a> {
    pub(super) fn of(walk: &'a Walk<'a>) -> Exits<'a> {
        let mut before: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for &at in walk.reached.keys() {
            for next in walk.next(at).into_iter().flatten() {
                before.entry(next).or_default().push(at);
            }
        }
        Exits { walk, before, tails: BTreeMap::new(), steps: MAX_STEPS, info: InstructionInfoFactory::new() }
    }

    /// The posts of an exit; nothing if it has none.
    pub(super) fn posts(&mut self, exit: u64) -> Option<Vec<Place>> {
        let mut posts = Vec::new();
        let mut open = vec![exit];
        let mut seen = BTreeSet::new();
        while let Some(at) = open.pop() {
            if !seen.insert(at) {
                continue;
            }
            // An execution may begin here, or come from code that was not read.
            if at == 0 || self.walk.strange.contains(&at) {
                return None;
            }
            let above = self.tail(at)?;
            for from in self.before.get(&at).cloned().unwrap_or_default() {
                self.steps = self.steps.checked_sub(1)?;
                let i = self.walk.reached[&from];
                let cheap = emulated(&self.walk.code[from as usize..]);
                if i.flow_control() == FlowControl::ConditionalBranch {
                    if !cheap || self.tail(from).is_none() && self.turns(from) {
                        return None;
                    }
                    let taken = self.walk.target(&i) == Some(at);
                    let always = taken && from + i.len() as u64 == at;
                    let condition = (i.condition_code() as u8).checked_sub(1)? ^ u8::from(!taken);
                    add(&mut posts, from, above, (!always).then_some(condition));
                } else {
                    let above = self.tail(from)?;
                    if cheap { add(&mut posts, from, above, None) } else { open.push(from) }
                }
            }
        }
        (1..=MAX_POSTS).contains(&posts.len()).then_some(posts)
    }

    /// Where the return address lies before this instruction, if from there the control flow leads
    /// only out, through no call and no loop.
    fn tail(&mut self, at: u64) -> Option<Above> {
        let mut open = vec![(at, false)];
        while let Some((at, returned)) = open.pop() {
            if self.tails.contains_key(&at) && !returned {
                continue;
            }
            let i = self.walk.reached[&at];
            let next = self.walk.next(at);
            let (plain, out) = match i.flow_control() {
                FlowControl::Next => (!(i.has_rep_prefix() || i.has_repne_prefix()), false),
                FlowControl::Return => (true, true),
                FlowControl::UnconditionalBranch => (true, next == [None]),
                FlowControl::ConditionalBranch => (true, false),
                _ => (false, false),
            };
            if !plain || out || next.contains(&None) {
                self.tails.insert(at, (plain && out).then(Above::default));
            } else if returned {
                let mut ways = next.iter().flatten().map(|n| self.tails.get(n).copied().flatten());
                let first = ways.next().flatten();
                let same = ways.all(|way| way == first);
                let above = first.filter(|_| same).and_then(|after| ahead_of(&mut self.info, &i, after));
                self.tails.insert(at, above);
            } else {
                // Met again on the way, it is in a loop.
                self.tails.insert(at, None);
                open.push((at, true));
                open.extend(next.into_iter().flatten().map(|n| (n, false)));
                self.steps = self.steps.checked_sub(1)?;
            }
        }
        self.tails[&at]
    }

    /// Whether the control flow may come by here again, as far as the search goes.
    fn turns(&mut self, at: u64) -> bool {
        let mut open = vec![at];
        let mut seen = BTreeSet::new();
        while let Some(from) = open.pop() {
            // A `switch` may lead to any case.
            let switch = self.walk.reached[&from].flow_control() == FlowControl::IndirectBranch;
            let cases = if switch { self.walk.strange.iter() } else { Default::default() };
            let next = self.walk.next(from).into_iter().flatten();
            for next in next.chain(cases.copied().filter(|case| self.walk.reached.contains_key(case))) {
                if self.steps == 0 || next == at {
                    return true;
                }
                self.steps -= 1;
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        false
    }
}

/// Where the return address lies before an instruction, from where it lies after it.
pub(super) fn ahead_of(info: &mut InstructionInfoFactory, i: &Instruction, after: Above) -> Option<Above> {
    let Above { frame, bytes } = after;
    let by = |frame: bool, more: i64| Some(Above { frame, bytes: i32::try_from(i64::from(bytes) + more).ok()? });
    let is = |n: u32, register| i.op_kind(n) == OpKind::Register && i.op_register(n) == register;
    let value = |n: u32| i.try_immediate(n).ok().map(|v| v as i64);
    if frame {
        return (!writes(info, i, Register::RBP)).then_some(after);
    }
    match i.mnemonic() {
        Mnemonic::Push if i.op0_kind() != OpKind::Register || i.op0_register().size() == 8 => by(false, -8),
        Mnemonic::Pop if !is(0, Register::RSP) && i.op0_register().size() == 8 => by(false, 8),
        Mnemonic::Add if is(0, Register::RSP) => by(false, value(1)?),
        Mnemonic::Sub if is(0, Register::RSP) => by(false, value(1)?.checked_neg()?),
        Mnemonic::Mov if is(0, Register::RSP) && is(1, Register::RBP) => by(true, 0),
        Mnemonic::Leave => by(true, 8),
        Mnemonic::Lea if is(0, Register::RSP) && i.memory_index() == Register::None => match i.memory_base() {
            Register::RSP => by(false, i.memory_displacement64() as i64),
            Register::RBP => by(true, i.memory_displacement64() as i64),
            _ => None,
        },
        _ => (!writes(info, i, Register::RSP)).then_some(after),
    }
}

fn writes(info: &mut InstructionInfoFactory, i: &Instruction, register: Register) -> bool {
    let reads = |access| matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
    let used = info.info(i).used_registers();
    used.iter().any(|u| u.register().full_register() == register && !reads(u.access()))
}

/// Adds a post, once: where both ways of a jump lead to the exit, without a condition.
fn add(posts: &mut Vec<Place>, offset: u64, above: Above, only_if: Option<u8>) {
    match posts.iter_mut().find(|p| p.offset == offset) {
        Some(there) if there.only_if != only_if => there.only_if = None,
        Some(_) => {}
        None => posts.push(Place { offset, emulated: true, above, only_if, ..Place::default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape;
    use super::*;

    /// What is probed to see this function left: offset, exit, condition, where the return address
    /// lies from the frame pointer and from the stack pointer; and which returns are stepped.
    type Ends = (Vec<(u64, u8, Option<u8>, Option<i32>, Option<i32>)>, Vec<u64>);
    fn ends(parts: &[&[u8]]) -> Ends {
        let s = shape(&parts.concat(), true, 0x1000, &|_, _| Vec::new());
        assert!(s.whole, "{s:?}");
        let (posts, stepped): (Vec<&Place>, Vec<&Place>) = s.ends.iter().partition(|e| e.emulated);
        let post = |p: &&Place| {
            let bytes = |frame| (p.above.frame == frame).then_some(p.above.bytes);
            (p.offset, p.exit.expect("an exit"), p.only_if, bytes(true), bytes(false))
        };
        (posts.iter().map(post).collect(), stepped.iter().map(|p| p.offset).collect())
    }

    const CALL: &[u8] = &[0xe8, 0, 0x10, 0, 0];
    const PUSH: &[u8] = &[0x55];
    const RET: &[u8] = &[0xc3];
    /// test eax,eax
    const TEST: &[u8] = &[0x85, 0xc0];

    #[test]
    fn the_way_of_the_stack_is_followed() {
        // push rbp; call; test; je +0; add rsp,0x18; pop rbp; ret
        let tail = [&[0x48, 0x83, 0xc4, 0x18, 0x5d][..], RET].concat();
        assert_eq!(ends(&[PUSH, CALL, TEST, &[0x74, 0], &tail]), (vec![(8, 0, None, None, Some(0x20))], vec![]));
        // With a frame: .. je +0; leave; ret
        assert_eq!(ends(&[PUSH, CALL, TEST, &[0x74, 0], &[0xc9], RET]), (vec![(8, 0, None, Some(8), None)], vec![]));
        // .. je +0; lea rsp,[rbp-0x18]; pop rbx; pop r12; pop r13; pop rbp; ret
        let tail = [&[0x48, 0x8d, 0x65, 0xe8, 0x5b, 0x41, 0x5c, 0x41, 0x5d, 0x5d][..], RET].concat();
        assert_eq!(ends(&[PUSH, CALL, TEST, &[0x74, 0], &tail]), (vec![(8, 0, None, Some(8), None)], vec![]));
        // .. je +0; mov rsp,rbp; pop rbp; ret. sub rsp,-0x80 and a push and a pop between.
        let tail = [&[0x48, 0x89, 0xec, 0x5d][..], RET].concat();
        assert_eq!(ends(&[PUSH, CALL, TEST, &[0x74, 0], &tail]), (vec![(8, 0, None, Some(8), None)], vec![]));
        let tail = [&[0x48, 0x83, 0xec, 0x80, 0x6a, 0x01, 0x59, 0x5d][..], RET].concat();
        assert_eq!(ends(&[PUSH, CALL, TEST, &[0x74, 0], &tail]), (vec![(8, 0, None, None, Some(0x88))], vec![]));
        // The frame pointer is loaded on the way to leave; the stack pointer comes from elsewhere,
        // or is aligned; a word is popped: where it is, is unknown.
        for odd in [
            &[0x48, 0x8b, 0x2f, 0xc9][..],
            &[0x48, 0x89, 0xcc],
            &[0x48, 0x83, 0xe4, 0xf0],
            &[0x66, 0x58],
            &[0x48, 0x8d, 0x24, 0x0c],
            &[0x5c],
        ] {
            let code: [&[u8]; 6] = [PUSH, CALL, TEST, &[0x74, 0], odd, RET];
            assert_eq!(ends(&code), (vec![], vec![10 + odd.len() as u64]), "{odd:x?}");
        }
    }

    #[test]
    fn one_side_of_a_jump_may_lead_out() {
        // push; call; test; jne +2; pop rbp; ret; call; test; jg +0; pop rbp; ret: not equal stays
        let (posts, stepped) = ends(&[PUSH, CALL, TEST, &[0x75, 2, 0x5d, 0xc3], CALL, TEST, &[0x7f, 0, 0x5d, 0xc3]]);
        assert_eq!(posts, [(8, 0, Some(4), None, Some(8)), (19, 1, None, None, Some(8))]);
        assert!(stepped.is_empty());
        // Each side to an exit of its own: jg (not: jle) and its target.
        let (posts, _) = ends(&[PUSH, CALL, TEST, &[0x7f, 2, 0x5d, 0xc3, 0x5d, 0xc3]]);
        assert_eq!(posts, [(8, 0, Some(14), None, Some(8)), (8, 1, Some(15), None, Some(8))]);
        // Two ways to one exit, each with its post: je +7 (to pop), call, test, js +0, pop, ret
        let (posts, _) = ends(&[PUSH, CALL, TEST, &[0x74, 9], CALL, TEST, &[0x78, 0], &[0x5d], RET]);
        assert_eq!(posts.iter().map(|p| (p.0, p.2)).collect::<Vec<_>>(), [(8, Some(4)), (17, None)]);
    }

    #[test]
    fn what_may_take_long_is_waited_for() {
        // After a call; after rep stosb; after syscall
        for long in [CALL, &[0xff, 0xd0], &[0xf3, 0xaa], &[0x0f, 0x05]] {
            let code: [&[u8]; 7] = [PUSH, CALL, TEST, &[0x74, 0], long, &[0x5d], RET];
            assert_eq!(ends(&code), (vec![], vec![11 + long.len() as u64]), "{long:x?}");
        }
        // dec ecx; jne back: a loop whose own jump leads out. Where another one does, behind it,
        // that is a post.
        let turn: &[u8] = &[0xff, 0xc9, 0x75, 0xfc];
        assert_eq!(ends(&[PUSH, CALL, turn, &[0x5d], RET]), (vec![], vec![11]));
        let (posts, stepped) = ends(&[PUSH, CALL, turn, TEST, &[0x74, 0], &[0x5d], RET]);
        assert_eq!((posts, stepped), (vec![(12, 0, None, None, Some(8))], vec![]));
        // Two ways, one of which has no post: je +5 (over the call) to pop; ret
        let (posts, stepped) = ends(&[PUSH, CALL, TEST, &[0x74, 5], CALL, &[0x5d], RET]);
        assert_eq!((posts, stepped), (vec![], vec![16]));
        // Nor where a case of a switch, which nobody found, may come from: jmp rax, and code that
        // only it reaches.
        let (posts, stepped) = ends(&[TEST, &[0x74, 2, 0xff, 0xe0, 0xc3, 0x90, 0xeb, 0xfc]]);
        assert_eq!((posts, stepped), (vec![], vec![6]));
    }

    #[test]
    fn the_search_takes_no_time() {
        // je +1 (over a return), again and again, and back to the first: each may turn.
        let mut code: Vec<u8> = [0x74, 0x01, 0xc3].into_iter().cycle().take(1 << 20).collect();
        code.truncate(code.len() / 3 * 3);
        let walk = |code: &[u8]| {
            let start = std::time::Instant::now();
            let s = shape(code, true, 0x1000, &|_, _| Vec::new());
            assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
            s.exits
        };
        assert_eq!(walk(&code), 0);
        // Few exits behind very many jumps.
        let many: Vec<u8> = [0x74, 0x00].into_iter().cycle().take(1 << 19).chain([0xc3]).collect();
        assert_eq!(walk(&many), 1);
    }
}
