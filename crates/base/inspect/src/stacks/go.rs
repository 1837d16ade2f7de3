//! Go's own table of functions and lines (`pclntab`), which stays in the program when it is
//! stripped.
//!
//! Promises: Go 1.18 and later, 64 bit; every offset is checked. Refuses: earlier versions.

use super::elf::{Elf, text_at, u32_at, u64_at};

/// Bytes of the table at most.
const MAX_TABLE: usize = 512 << 20;
/// Steps through one function's line table at most.
const MAX_STEPS: usize = 1 << 20;

/// A function and a place in it.
#[derive(Debug)]
pub(crate) struct GoFunction {
    pub(crate) name: String,
    /// Bytes from its start.
    pub(crate) offset: u64,
    /// Source file and line.
    pub(crate) line: Option<(String, u32)>,
}

/// The table of one program.
#[derive(Debug)]
pub(crate) struct GoTable {
    bytes: Vec<u8>,
    quantum: u64,
    count: usize,
    text: u64,
    names: usize,
    units: usize,
    files: usize,
    pcs: usize,
    functions: usize,
}

impl GoTable {
    pub(crate) fn of(elf: &Elf) -> Option<GoTable> {
        let bytes = elf.named(".gopclntab", MAX_TABLE).or_else(|| elf.named(".data.rel.ro.gopclntab", MAX_TABLE))?;
        let magic = u32_at(&bytes, 0)?;
        if !matches!(magic, 0xffff_fff0 | 0xffff_fff1) || bytes.get(4..6)? != [0, 0] || bytes.get(7) != Some(&8) {
            return None;
        }
        let field = |i: usize| u64_at(&bytes, 8 + 8 * i).and_then(|v| usize::try_from(v).ok());
        // Later versions leave the start of the code to the linker's section.
        let text = match u64_at(&bytes, 24)? {
            0 => elf.section(".text")?.addr,
            t => t,
        };
        Some(GoTable {
            quantum: u64::from(*bytes.get(6)?),
            count: field(0)?,
            text,
            names: field(3)?,
            units: field(4)?,
            files: field(5)?,
            pcs: field(6)?,
            functions: field(7)?,
            bytes,
        })
    }

    /// Where the i-th function begins, counted from the code's start.
    fn entry(&self, i: usize) -> Option<u32> {
        u32_at(&self.bytes, self.functions.checked_add(i.checked_mul(8)?)?)
    }

    /// Which function holds this place, counted from the code's start.
    fn index(&self, pc: u32) -> Option<usize> {
        let (mut low, mut high) = (0usize, self.count.min(self.bytes.len() / 8));
        while low < high {
            let mid = low.midpoint(high);
            if self.entry(mid)? <= pc { low = mid + 1 } else { high = mid }
        }
        low.checked_sub(1).filter(|&i| self.entry(i + 1).is_some_and(|end| pc < end))
    }

    /// Start and length, up to the next one, of the function that holds an address as linked.
    pub(crate) fn covers(&self, addr: u64) -> Option<(u64, u64)> {
        let i = self.index(u32::try_from(addr.checked_sub(self.text)?).ok()?)?;
        let (start, end) = (self.entry(i)?, self.entry(i + 1)?);
        Some((self.text.checked_add(start.into())?, u64::from(end.checked_sub(start)?)))
    }

    /// The n-th number of what is said of the i-th function.
    fn field(&self, i: usize, n: usize) -> Option<u32> {
        let offset = u32_at(&self.bytes, self.functions.checked_add(i.checked_mul(8)?.checked_add(4)?)?)?;
        u32_at(&self.bytes, self.functions.checked_add(offset as usize)?.checked_add(4 * n)?)
    }

    fn name(&self, i: usize) -> Option<&[u8]> {
        text_at(&self.bytes, self.names.checked_add(self.field(i, 1)? as usize)?)
    }

    /// Name, address as linked and length, up to the next one, of each function.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&[u8], u64, u64)> {
        (0..self.count.min(self.bytes.len() / 8)).filter_map(|i| {
            let (start, end) = (self.entry(i)?, self.entry(i + 1)?);
            Some((self.name(i)?, self.text.checked_add(start.into())?, end.checked_sub(start)?.into()))
        })
    }

    /// The function at an address as linked.
    pub(crate) fn at(&self, addr: u64) -> Option<GoFunction> {
        let pc = u32::try_from(addr.checked_sub(self.text)?).ok()?;
        let i = self.index(pc)?;
        let start = self.entry(i)?;
        let field = |n: usize| self.field(i, n);
        let name = self.name(i)?;
        let line = (|| {
            let file = self.value(field(5)?, start, pc)?;
            let line = self.value(field(6)?, start, pc)?;
            let slot = self.units.checked_add(4 * (field(8)? as usize).checked_add(usize::try_from(file).ok()?)?)?;
            let path = text_at(&self.bytes, self.files.checked_add(u32_at(&self.bytes, slot)? as usize)?)?;
            Some((String::from_utf8_lossy(path).into_owned(), u32::try_from(line).ok()?))
        })();
        Some(GoFunction {
            name: String::from_utf8_lossy(&name[..name.len().min(super::symbols::MAX_NAME)]).into_owned(),
            offset: u64::from(pc - start),
            line,
        })
    }

    /// The value of a table of (value difference, address difference) pairs at an address.
    fn value(&self, table: u32, start: u32, pc: u32) -> Option<i64> {
        let mut at = self.pcs.checked_add(table as usize)?;
        let mut value = -1i64;
        let mut reached = u64::from(start);
        for step in 0..MAX_STEPS {
            let delta = self.varint(&mut at)?;
            if delta == 0 && step > 0 {
                return None;
            }
            value += (delta >> 1) as i64 ^ -((delta & 1) as i64);
            reached += u64::from(self.varint(&mut at)? as u32) * self.quantum;
            if u64::from(pc) < reached {
                return Some(value);
            }
        }
        None
    }

    fn varint(&self, at: &mut usize) -> Option<u64> {
        let mut v = 0u64;
        for shift in (0..35).step_by(7) {
            let b = *self.bytes.get(*at)?;
            *at += 1;
            v |= u64::from(b & 127) << shift;
            if b & 128 == 0 {
                return Some(v);
            }
        }
        None
    }
}
