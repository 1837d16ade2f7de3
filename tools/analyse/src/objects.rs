//! The heap's objects at one moment, by address.
//!
//! Invariant: no two overlap. What comes later takes the place of what it overlaps: freed memory is
//! used again.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) start: u64,
    /// Behind its last byte.
    pub(crate) end: u64,
    /// Number of its allocation's stack; nothing if the task made it itself.
    pub(crate) site: Option<usize>,
    pub(crate) live: bool,
    /// Freed before the call.
    pub(crate) stale: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Objects(BTreeMap<u64, Object>);

impl Objects {
    pub(crate) fn insert(&mut self, object: Object) {
        let object = Object { end: object.end.max(object.start.saturating_add(1)), ..object };
        let old: Vec<u64> = self.overlapping(object.start, object.end).map(|o| o.start).collect();
        for start in old {
            self.0.remove(&start);
        }
        self.0.insert(object.start, object);
    }

    pub(crate) fn free(&mut self, address: u64) {
        if let Some(object) = self.0.get_mut(&address) {
            object.live = false;
        }
    }

    /// The object that begins here is none any more.
    pub(crate) fn forget(&mut self, start: u64) {
        self.0.remove(&start);
    }

    /// Those with a byte in this range, from the last on.
    pub(crate) fn overlapping(&self, from: u64, until: u64) -> impl Iterator<Item = Object> {
        self.0.range(..until).rev().map(|(_, o)| *o).take_while(move |o| o.end > from)
    }

    pub(crate) fn at(&self, address: u64) -> Option<Object> {
        self.overlapping(address, address.saturating_add(1)).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(start: u64, end: u64, live: bool) -> Object {
        Object { start, end, site: None, live, stale: !live }
    }

    #[test]
    fn memory_used_again_is_the_new_object() {
        let mut objects = Objects::default();
        objects.insert(object(0x10, 0x20, false));
        objects.insert(object(0x20, 0x30, false));
        objects.insert(object(0x18, 0x28, true));
        assert_eq!((objects.at(0x12), objects.at(0x2c)), (None, None));
        assert_eq!(objects.at(0x27), Some(object(0x18, 0x28, true)));
        objects.free(0x18);
        assert!(objects.at(0x18).is_some_and(|o| !o.live));
    }
}
