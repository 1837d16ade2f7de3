//! A module's side of the core: [`Client`], the five calls of the paper's section 3.1 and the
//! events that come back.

use super::{
    Inner,
    subscription::{Queue, Subscription, lock},
};
use crate::{
    command::{Command, Reply},
    error::{Error, Result},
    event::{Event, Kind},
    filter::{Counts, Filter},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

/// A module as the core sees it: pins it uses, events it subscribed to, programs guarded for it.
/// All calls may be made from any thread. Dropping it releases everything.
pub struct Client {
    pub(super) core: Arc<Inner>,
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) queue: Arc<Queue>,
    pub(super) subscriptions: Mutex<HashMap<u64, Arc<Subscription>>>,
}

impl Client {
    /// The module's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// From now on the module uses the pin; its first user loads it. Using it again changes
    /// nothing.
    ///
    /// # Errors
    /// [`Error::PinMissing`] says which pin, for which module, and what to install or allow.
    pub fn use_pin(&self, pin: &str) -> Result<()> {
        self.core.use_pin(self.id, &self.name, pin)
    }

    /// The module no longer uses the pin: its subscriptions there end, and what it made there is
    /// forgotten. The last user unloads the pin.
    pub fn release_pin(&self, pin: &str) -> Result<()> {
        for id in self.core.release_pin(self.id, &self.name, pin)? {
            lock(&self.subscriptions).remove(&id);
        }
        Ok(())
    }

    /// Has the pin do something. Blocks for as long as that takes.
    pub fn issue_cmd(&self, pin: &str, command: &Command) -> Result<Reply> {
        self.core.issue_cmd(self.id, &self.name, pin, command)
    }

    /// From now on events of this kind that pass the filter come to the module. Gives the
    /// subscription's number.
    pub fn subscr_event(&self, pin: &str, kind: Kind, filter: Filter) -> Result<u64> {
        let subscription = self.core.subscribe(self.id, &self.name, &self.queue, pin, kind, filter)?;
        let id = subscription.id;
        lock(&self.subscriptions).insert(id, subscription);
        Ok(id)
    }

    /// Ends a subscription; events of it that wait are gone.
    pub fn unsubscr_event(&self, subscription: u64) -> Result<()> {
        let Some(found) = lock(&self.subscriptions).remove(&subscription) else {
            return Err(Error::NoSuchSubscription { module: self.name.clone(), id: subscription });
        };
        self.core.unsubscribe(&found);
        Ok(())
    }

    /// Waits up to `timeout` for events and appends up to `most` of them to `out`. Gives how many.
    pub fn wait(&self, most: usize, timeout: Duration, out: &mut Vec<Event>) -> usize {
        let before = out.len();
        let n = self.queue.take(most, timeout, out);
        let subscriptions = lock(&self.subscriptions);
        for run in out[before..].chunk_by(|a, b| a.subscription == b.subscription) {
            if let Some(subscription) = subscriptions.get(&run[0].subscription) {
                subscription.took(run.len() as u64);
            }
        }
        n
    }

    /// Ends a [`Client::wait`] in another thread early.
    pub fn wake(&self) {
        self.queue.nudge();
    }

    /// What became of a subscription's events so far.
    pub fn counts(&self, subscription: u64) -> Result<Counts> {
        lock(&self.subscriptions)
            .get(&subscription)
            .map(|subscription| subscription.counts())
            .ok_or_else(|| Error::NoSuchSubscription { module: self.name.clone(), id: subscription })
    }

    /// The module's subscriptions: number, kind, counts.
    pub fn subscriptions(&self) -> Vec<(u64, Kind, Counts)> {
        let mut all: Vec<_> = lock(&self.subscriptions).values().map(|sub| (sub.id, sub.kind, sub.counts())).collect();
        all.sort_by_key(|(id, ..)| *id);
        all
    }

    /// Whether this subscription still exists.
    pub(super) fn has(&self, subscription: u64) -> bool {
        lock(&self.subscriptions).contains_key(&subscription)
    }

    /// The programs guarded for it that still run, if any came or went since `seen`, which is
    /// brought up to date; 0: since ever.
    pub(super) fn newly_guarded(&self, seen: &mut u64) -> Option<Vec<u32>> {
        let mut state = lock(&self.core.state);
        let now = self.core.guards.load(Ordering::Relaxed);
        (std::mem::replace(seen, now) != now).then(|| state.guarded_for(self.id))
    }

    /// Guards a program for this module only; see [`crate::Core::guard`].
    pub fn guard(&self, pid: u32) -> Result<()> {
        self.core.guard(Some(self.id), pid)
    }

    /// No longer guards it for this module.
    pub fn unguard(&self, pid: u32) {
        self.core.unguard(Some(self.id), pid);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        lock(&self.subscriptions).clear();
        self.core.leave(self.id, &self.name);
    }
}
