//! Types of a crate on which the task's crate depends.

use std::collections::BTreeMap;

/// A waiter, in a chain.
pub struct Waiter {
    pub id: u32,
    pub next: Option<Box<Waiter>>,
}

/// Locks by name.
#[derive(Default)]
pub struct Locks {
    by_name: BTreeMap<String, Lock>,
    /// What no task reads.
    history: Vec<Event>,
}

struct Lock {
    waiters: Option<Box<Waiter>>,
}

struct Event {
    _at: [u64; 4],
}

impl Locks {
    pub fn wait(&mut self, name: &str, id: u32) {
        let lock = self.by_name.entry(name.to_owned()).or_insert(Lock { waiters: None }); /* SITE */
        let next = lock.waiters.take();
        lock.waiters = Some(Box::new(Waiter { id, next })); /* SITE */
        self.history.push(Event { _at: [u64::from(id); 4] }); /* OTHER */
    }

    pub fn longest(&self) -> u32 {
        self.by_name.iter().map(|(name, lock)| lock.length() + u32::from(name.is_empty())).max().unwrap_or(0)
    }
}

impl Lock {
    fn length(&self) -> u32 {
        let (mut length, mut waiter) = (0, &self.waiters);
        while let Some(next) = waiter {
            length += u32::from(next.id != 0);
            waiter = &next.next;
        }
        length
    }
}
