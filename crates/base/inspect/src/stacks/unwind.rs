//! One step outwards on a stack, by call frame information or by frame pointer.
//!
//! Promises: bounded work a step, whatever the unwind tables say: expressions are cut off after
//! [`MAX_STEPS`] operations, entries longer than [`MAX_ENTRY`] are not run. Registers that a step
//! does not restore are kept.

use super::elf::u32_at;
use gimli::{
    BaseAddresses, CfaRule, DebugFrame, EhFrame, EndianSlice, EvaluationResult, Expression, LittleEndian, Location,
    Register, RegisterRule, UnwindContext, UnwindSection, Value,
};
use std::ops::Range;

/// Operations of one expression at most.
const MAX_STEPS: u32 = 1000;
/// Bytes of one entry of the tables at most.
const MAX_ENTRY: usize = 1 << 16;
/// Entries of a table without index at most.
const MAX_INDEX: usize = 4 << 20;

const RBP: usize = 6;
const RSP: usize = 7;
const RIP: usize = 16;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Registers by their DWARF numbers: rax rdx rcx rbx rsi rdi rbp rsp r8..r15 rip; nothing where
/// unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Regs(pub(crate) [Option<u64>; 17]);

impl Regs {
    pub(crate) fn pc(&self) -> u64 {
        self.0[RIP].unwrap_or(0)
    }
    pub(crate) fn sp(&self) -> u64 {
        self.0[RSP].unwrap_or(0)
    }
    fn get(&self, r: Register) -> Option<u64> {
        *self.0.get(usize::from(r.0))?
    }
}

/// The unwind tables of one file.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) eh_frame: Vec<u8>,
    pub(crate) eh_frame_hdr: Vec<u8>,
    pub(crate) debug_frame: Vec<u8>,
    pub(crate) bases: BaseAddresses,
    /// First address, length and place of each entry of `eh_frame`, if that has no index of its
    /// own.
    pub(crate) eh_index: Vec<(Range<u64>, usize)>,
    /// The same for `debug_frame`.
    pub(crate) debug_index: Vec<(Range<u64>, usize)>,
}

/// Why a step could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stuck {
    /// The tables have nothing for this address.
    NoEntry,
    /// The tables say that this is the outermost frame.
    Outermost,
    /// The tables or the stack make no sense.
    Nonsense,
}

/// A step outwards.
pub(crate) struct Step {
    pub(crate) regs: Regs,
    /// The frame left was put there by the kernel for a signal handler: the next pc is where it
    /// struck, not a return address.
    pub(crate) signal: bool,
}

/// Reads a stack word.
pub(crate) type ReadWord<'a> = dyn FnMut(u64) -> Option<u64> + 'a;

impl Tables {
    /// Builds the indexes that the file lacks.
    pub(crate) fn index(&mut self) {
        if !self.eh_frame.is_empty() && self.entries().is_none() {
            self.eh_index = index(&EhFrame::new(&self.eh_frame, LittleEndian), &self.bases);
        }
        if !self.debug_frame.is_empty() {
            self.debug_index = index(&debug_frame(&self.debug_frame), &self.bases);
        }
    }

    /// Entries in the index of `.eh_frame_hdr`; nothing if it has none, or is not packed in the
    /// usual way.
    fn entries(&self) -> Option<usize> {
        let usual = self.eh_frame_hdr.starts_with(&[1, 0x1b, 3, 0x3b]);
        let count = u32_at(&self.eh_frame_hdr, 8).filter(|_| usual)? as usize;
        (self.eh_frame_hdr.len().saturating_sub(12) / 8 >= count && count > 0).then_some(count)
    }

    /// Where in `.eh_frame` the entry for an address may be, by the index.
    fn lookup(&self, addr: u64) -> Option<usize> {
        let base = self.bases.eh_frame_hdr.section?;
        let word = |i: usize| u32_at(&self.eh_frame_hdr, i).map(|w| base.wrapping_add(w as i32 as u64));
        let (mut low, mut high) = (0, self.entries()?);
        while low < high {
            let mid = low.midpoint(high);
            if word(12 + 8 * mid)? <= addr { low = mid + 1 } else { high = mid }
        }
        let entry = word(12 + 8 * low.checked_sub(1)? + 4)?;
        let at = usize::try_from(entry.checked_sub(self.bases.eh_frame.section?)?).ok()?;
        (at < self.eh_frame.len()).then_some(at)
    }

    /// Start and length of the code that the entry for an address covers.
    pub(crate) fn covers(&self, addr: u64) -> Option<(u64, u64)> {
        let eh = EhFrame::new(&self.eh_frame, LittleEndian);
        let by_eh = self.lookup(addr).or_else(|| find(&self.eh_index, addr)).and_then(|at| {
            let fde = eh.fde_from_offset(&self.bases, at.into(), EhFrame::cie_from_offset).ok()?;
            Some((fde.initial_address(), fde.len()))
        });
        let by_debug = || {
            let at = find(&self.debug_index, addr)?;
            let section = debug_frame(&self.debug_frame);
            let fde = section.fde_from_offset(&self.bases, at.into(), DebugFrame::cie_from_offset).ok()?;
            Some((fde.initial_address(), fde.len()))
        };
        let holds = |r: &(u64, u64)| addr.checked_sub(r.0).is_some_and(|o| o < r.1);
        by_eh.filter(holds).or_else(by_debug).filter(holds)
    }

    /// One step from the frame whose code at `addr` (as linked) is or was running.
    pub(crate) fn step(&self, addr: u64, regs: &Regs, read: &mut ReadWord<'_>) -> Result<Step, Stuck> {
        let eh = EhFrame::new(&self.eh_frame, LittleEndian);
        let by_header =
            self.lookup(addr).and_then(|at| eh.fde_from_offset(&self.bases, at.into(), EhFrame::cie_from_offset).ok());
        let fde = by_header.or_else(|| {
            let at = find(&self.eh_index, addr)?;
            eh.fde_from_offset(&self.bases, at.into(), EhFrame::cie_from_offset).ok()
        });
        if let Some(fde) = fde {
            return run(&eh, &self.bases, &fde, addr, regs, read);
        }
        let section = debug_frame(&self.debug_frame);
        let at = find(&self.debug_index, addr).ok_or(Stuck::NoEntry)?;
        let fde =
            section.fde_from_offset(&self.bases, at.into(), DebugFrame::cie_from_offset).map_err(|_| Stuck::NoEntry)?;
        run(&section, &self.bases, &fde, addr, regs, read)
    }
}

fn debug_frame(bytes: &[u8]) -> DebugFrame<Slice<'_>> {
    let mut d = DebugFrame::new(bytes, LittleEndian);
    d.set_address_size(8);
    d
}

fn find(index: &[(Range<u64>, usize)], addr: u64) -> Option<usize> {
    let i = index.partition_point(|(r, _)| r.start <= addr);
    index[..i].last().filter(|(r, _)| r.contains(&addr)).map(|&(_, at)| at)
}

fn index<'a, S>(section: &S, bases: &BaseAddresses) -> Vec<(Range<u64>, usize)>
where
    S: UnwindSection<Slice<'a>>,
{
    let mut out = Vec::new();
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let Ok(fde) = partial.parse(S::cie_from_offset) else {
            continue;
        };
        let end = fde.initial_address().saturating_add(fde.len());
        out.push((fde.initial_address()..end, fde.offset()));
        if out.len() == MAX_INDEX {
            break;
        }
    }
    out.sort_by_key(|(r, _)| r.start);
    out
}

fn run<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    fde: &gimli::FrameDescriptionEntry<Slice<'a>>,
    addr: u64,
    regs: &Regs,
    read: &mut ReadWord<'_>,
) -> Result<Step, Stuck> {
    if !fde.contains(addr) {
        return Err(Stuck::NoEntry);
    }
    if fde.entry_len() > MAX_ENTRY || fde.cie().entry_len() > MAX_ENTRY {
        return Err(Stuck::Nonsense);
    }
    let encoding = fde.cie().encoding();
    let mut context = UnwindContext::new();
    let row = fde.unwind_info_for_address(section, bases, &mut context, addr).map_err(|_| Stuck::NoEntry)?;
    let evaluate = |e: Expression<Slice<'a>>, first: Option<u64>, read: &mut ReadWord<'_>| {
        expression(e, encoding, first, regs, read).ok_or(Stuck::Nonsense)
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let base = regs.get(*register).ok_or(Stuck::Nonsense)?;
            base.wrapping_add(*offset as u64)
        }
        CfaRule::Expression(e) => evaluate(e.get(section).map_err(|_| Stuck::Nonsense)?, None, read)?,
    };
    let mut out = *regs;
    out.0[RSP] = Some(cfa);
    let return_register = fde.cie().return_address_register();
    let mut returns = false;
    for (register, rule) in row.registers() {
        let Some(slot) = out.0.get_mut(usize::from(register.0)) else {
            continue;
        };
        *slot = match rule {
            RegisterRule::Undefined => None,
            RegisterRule::SameValue => continue,
            RegisterRule::Offset(n) => read(cfa.wrapping_add(*n as u64)),
            RegisterRule::ValOffset(n) => Some(cfa.wrapping_add(*n as u64)),
            RegisterRule::Register(r) => regs.get(*r),
            RegisterRule::Expression(e) => {
                let at = evaluate(e.get(section).map_err(|_| Stuck::Nonsense)?, Some(cfa), read)?;
                read(at)
            }
            RegisterRule::ValExpression(e) => {
                Some(evaluate(e.get(section).map_err(|_| Stuck::Nonsense)?, Some(cfa), read)?)
            }
            RegisterRule::Constant(v) => Some(*v),
            _ => None,
        };
        if *register == return_register {
            returns = true;
            if *rule == RegisterRule::Undefined {
                return Err(Stuck::Outermost);
            }
        }
    }
    let target = out.get(return_register).filter(|_| returns).ok_or(Stuck::Nonsense)?;
    out.0[RIP] = Some(target);
    if target == 0 {
        return Err(Stuck::Outermost);
    }
    Ok(Step { regs: out, signal: fde.is_signal_trampoline() })
}

/// The value of an expression that needs nothing but registers and the stack.
fn expression(
    e: Expression<Slice<'_>>,
    encoding: gimli::Encoding,
    first: Option<u64>,
    regs: &Regs,
    read: &mut ReadWord<'_>,
) -> Option<u64> {
    let mut eval = e.evaluation(encoding);
    eval.set_max_iterations(MAX_STEPS);
    if let Some(v) = first {
        eval.set_initial_value(v);
    }
    let mut state = eval.evaluate().ok()?;
    for _ in 0..MAX_STEPS {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                eval.resume_with_register(Value::Generic(regs.get(register)?)).ok()?
            }
            EvaluationResult::RequiresMemory { address, .. } => {
                eval.resume_with_memory(Value::Generic(read(address)?)).ok()?
            }
            _ => return None,
        };
    }
    match eval.as_result() {
        [piece] => match piece.location {
            Location::Address { address } => Some(address),
            _ => None,
        },
        _ => None,
    }
}

/// A step by frame pointer: right where code keeps one, as Go's does.
pub(crate) fn by_frame_pointer(regs: &Regs, read: &mut ReadWord<'_>) -> Result<Regs, Stuck> {
    let fp = regs.0[RBP].ok_or(Stuck::Nonsense)?;
    if fp == 0 {
        return Err(Stuck::Outermost);
    }
    if fp < regs.sp() || fp & 7 != 0 || fp - regs.sp() > 1 << 20 {
        return Err(Stuck::Nonsense);
    }
    let mut out = *regs;
    let saved = read(fp).ok_or(Stuck::Nonsense)?;
    let target = read(fp.wrapping_add(8)).ok_or(Stuck::Nonsense)?;
    if target == 0 {
        return Err(Stuck::Outermost);
    }
    out.0[RBP] = Some(saved);
    out.0[RSP] = Some(fp.wrapping_add(16));
    out.0[RIP] = Some(target);
    Ok(out)
}

/// A step by the word on top of the stack: right in a function that has pushed nothing yet.
pub(crate) fn by_top_word(regs: &Regs, read: &mut ReadWord<'_>) -> Option<Regs> {
    let mut out = *regs;
    out.0[RIP] = Some(read(regs.sp()).filter(|&w| w != 0)?);
    out.0[RSP] = Some(regs.sp().wrapping_add(8));
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> Option<u64> {
        let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
        let mut regs = Regs::default();
        regs.0[7] = Some(100);
        expression(Expression(EndianSlice::new(bytes, LittleEndian)), encoding, None, &regs, &mut |a| Some(a + 1))
    }

    #[test]
    fn expressions_end() {
        assert_eq!(value(&[0x77, 8]), Some(108), "stack pointer plus 8");
        assert_eq!(value(&[0x77, 8, 0x06]), Some(109), "what stands there");
        assert_eq!(value(&[0x2f, 0xfd, 0xff]), None, "a jump to itself");
        assert_eq!(value(&[0x30, 0x2f, 0xfc, 0xff]), None, "pushes for ever");
        assert_eq!(value(&[0x70, 0]), None, "a register that is not known");
    }
}
