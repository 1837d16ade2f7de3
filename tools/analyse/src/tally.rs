//! What was accessed, added up over all calls.

use crate::access::Access;
use crate::bytes::Bytes;
use crate::objects::Object;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Of the objects of one allocation stack, or of a global.
#[derive(Debug, Default)]
pub(crate) struct Use {
    pub(crate) objects: BTreeSet<u64>,
    /// Smallest and largest of them, bytes.
    pub(crate) sizes: Option<(u64, u64)>,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) read: Bytes,
    pub(crate) written: Bytes,
    /// Instructions that accessed them after they were freed.
    pub(crate) after_free: BTreeSet<u64>,
}

impl Use {
    /// The part of an access that lies in an object that begins at `start` and ends ahead of `end`.
    pub(crate) fn note(&mut self, start: u64, end: u64, access: Access) {
        let size = end - start;
        let (least, most) = self.sizes.unwrap_or((size, size));
        self.sizes = Some((least.min(size), most.max(size)));
        self.objects.insert(start);
        let from = access.address.max(start) - start;
        let until = access.address.saturating_add(access.size).min(end) - start;
        if access.read {
            self.reads += 1;
            self.read.add(from, until);
        }
        if access.write {
            self.writes += 1;
            self.written.add(from, until);
        }
    }
}

/// All uses.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Numbers of stacks.
    numbers: HashMap<Vec<u64>, usize>,
    /// By number of the stack: only those that were accessed.
    pub(crate) sites: BTreeMap<usize, Use>,
    /// By address of the variable.
    pub(crate) globals: BTreeMap<u64, Use>,
    /// By the return address of a caller's frame: what of it was accessed.
    pub(crate) callers: BTreeMap<u64, Use>,
    /// Instructions stepped.
    pub(crate) steps: u64,
    /// Accesses whose address is not known.
    pub(crate) unknown: u64,
}

impl Tally {
    /// The number of a stack.
    pub(crate) fn number(&mut self, stack: Vec<u64>) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry(stack).or_insert(next)
    }

    pub(crate) fn note(&mut self, object: Object, access: Access, instruction: u64) {
        let Some(site) = object.site else { return };
        let used = self.sites.entry(site).or_default();
        used.note(object.start, object.end, access);
        if !object.live {
            used.after_free.insert(instruction);
        }
    }

    /// Stacks of the sites that were accessed.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = (usize, &Vec<u64>)> {
        self.numbers
            .iter()
            .filter(|(_, number)| self.sites.contains_key(number))
            .map(|(stack, &number)| (number, stack))
    }
}
