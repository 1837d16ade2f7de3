//! What services have set: the last value of each grant, in the control part, since upcalls note
//! what they set there; and which grants are of the same attribute.

use crate::shared::Shared;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lines that wait to be read, at most.
const MAX_LINES: usize = 1000;

/// Lines of changes that wait to be read, at most: a service that sets something new all the time
/// must not push the rest out of the log.
const MAX_CHANGES: usize = 20;

/// An attribute: class, target, and when the target began.
type Attribute = (u32, i32, u64);

/// See the module's head. Any thread of the host uses it.
#[derive(Debug)]
pub(crate) struct Sets {
    shared: Arc<Shared>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By places of the ledger.
    attributes: BTreeMap<usize, Attribute>,
    lines: Vec<String>,
    /// What was set, and lines that there was no room for.
    changes: Vec<String>,
    left_out: usize,
}

impl Sets {
    /// None yet.
    pub(crate) fn new(shared: Arc<Shared>) -> Sets {
        Sets { shared, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A grant has this place from now on; nothing was set through it.
    pub(crate) fn begin(&self, entry: usize, class: u32, target: i32, began: u64) {
        self.shared.set(entry).clear();
        self.known().attributes.insert(entry, (class, target, began));
    }

    /// The place is free.
    pub(crate) fn end(&self, entry: usize) {
        self.shared.set(entry).clear();
        self.known().attributes.remove(&entry);
    }

    /// Something was set through the grant.
    pub(crate) fn note(&self, entry: usize, value: i64) {
        self.shared.set(entry).note(value);
    }

    /// What was set through it last.
    pub(crate) fn value(&self, entry: usize) -> Option<i64> {
        self.shared.set(entry).value()
    }

    /// What was set through another grant of the same attribute.
    pub(crate) fn of_others(&self, entry: usize) -> Option<i64> {
        let known = self.known();
        let attribute = known.attributes.get(&entry)?;
        let others = known.attributes.iter().filter(|(other, its)| **other != entry && *its == attribute);
        others.filter_map(|(other, _)| self.value(*other)).last()
    }

    /// Nothing is to be put back any more.
    pub(crate) fn clear(&self, entry: usize) {
        self.shared.set(entry).clear();
    }

    /// It was put back, as the line says.
    pub(crate) fn done(&self, entry: usize, line: String) {
        self.clear(entry);
        let mut known = self.known();
        if known.lines.len() < MAX_LINES {
            known.lines.push(line);
        }
    }

    /// Something was set, or was not, as the line says.
    pub(crate) fn changed(&self, line: String) {
        let mut known = self.known();
        if known.changes.len() < MAX_CHANGES {
            known.changes.push(line);
        } else {
            known.left_out += 1;
        }
    }

    /// The lines of changes since the last call of this.
    pub(crate) fn take_changes(&self) -> Vec<String> {
        let mut known = self.known();
        let left_out = std::mem::take(&mut known.left_out);
        let mut changes = std::mem::take(&mut known.changes);
        if left_out > 0 {
            changes.push(format!("{left_out} more values were set or refused"));
        }
        changes
    }

    /// The lines since the last call of this.
    pub(crate) fn take_lines(&self) -> Vec<String> {
        std::mem::take(&mut self.known().lines)
    }
}
