//! The core's [`State`]: which module uses which pin, the subscriptions, and the programs guarded
//! for each module.

use super::{MAX_SUBSCRIPTIONS, MAX_WAITING_EVENTS, Queue, Subscription, still_runs};
use crate::{
    error::{Error, PinError, Result},
    filter::{Counts, Filter, Scope},
    pin::{Pin, PinKind},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

pub(super) type SharedPin = Arc<Mutex<Box<dyn Pin>>>;

pub(super) struct Loaded {
    pub(super) pin: SharedPin,
    pub(super) users: BTreeSet<u64>,
}

pub(super) struct Member {
    pub(super) name: String,
    /// The module's life before, which ends once this one has started; 0: none.
    pub(super) before: u64,
    pub(super) guarded: BTreeMap<u32, u64>,
    pub(super) queue: Arc<Queue>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) kinds: BTreeMap<&'static str, PinKind>,
    pub(super) loaded: BTreeMap<&'static str, Loaded>,
    /// Pins that a user gave back, and which have not yet forgotten it.
    pub(super) released: BTreeSet<(&'static str, u64)>,
    pub(super) members: HashMap<u64, Member>,
    pub(super) subscriptions: HashMap<u64, (&'static str, Arc<Subscription>)>,
    pub(super) guarded: BTreeMap<u32, u64>,
}

impl State {
    /// The pin, if the module uses it.
    pub(super) fn pin_of(&self, user: u64, module: &str, pin: &str) -> Result<SharedPin> {
        match self.loaded.get(pin) {
            Some(loaded) if loaded.users.contains(&user) => Ok(loaded.pin.clone()),
            _ => Err(Error::PinNotUsed { pin: pin.into(), module: module.into() }),
        }
    }

    /// Why one more subscription of a module would take too much of the core's memory, if it would.
    pub(super) fn no_room(&self, user: u64, filter: &Filter) -> Option<String> {
        let own = self.subscriptions.values().filter(|(_, sub)| sub.client == user);
        let (count, waiting) =
            own.fold((0, 0), |(count, waiting), (_, sub)| (count + 1, waiting + u64::from(sub.filter.queue)));
        if count >= MAX_SUBSCRIPTIONS {
            return Some(format!("it has {count} subscriptions, {MAX_SUBSCRIPTIONS} at most: unsubscribe one"));
        }
        let queue = u64::from(filter.queue);
        if waiting + queue > MAX_WAITING_EVENTS {
            return Some(format!(
                "{MAX_WAITING_EVENTS} events may wait for it, {waiting} are promised to its other subscriptions and \
                 {queue} are \
                 asked for: lower Filter::queue"
            ));
        }
        filter.too_long()
    }

    /// The counts of a pin's subscriptions, added up.
    pub(super) fn counts_of(&self, pin: &str) -> Counts {
        let own = self.subscriptions.values().filter(|(of, _)| *of == pin).map(|(_, sub)| sub.counts());
        own.fold(Counts::default(), |all, one| Counts {
            passed: all.passed + one.passed,
            due: all.due + one.due,
            delivered: all.delivered + one.delivered,
            waiting: all.waiting + one.waiting,
            lost: all.lost + one.lost,
            unlisted: all.unlisted + one.unlisted,
        })
    }

    /// Programs guarded for a module that still run.
    pub(super) fn guarded_for(&mut self, user: u64) -> Vec<u32> {
        let alive = |(pid, born): (&u32, &u64)| still_runs(*pid, *born).then_some(*pid);
        let own = self.members.get(&user).map(|member| &member.guarded);
        self.guarded.iter().chain(own.into_iter().flatten()).filter_map(alive).collect()
    }

    /// Has a module, or all of them, see that what is guarded changed.
    pub(super) fn nudge(&self, user: Option<u64>) {
        for member in self.members.iter().filter(|(id, _)| user.is_none_or(|user| user == **id)) {
            member.1.queue.nudge();
        }
    }

    /// The subscriptions to guarded programs, of one module or of all.
    pub(super) fn to_guarded(&self, user: Option<u64>) -> impl Iterator<Item = &Arc<Subscription>> {
        let all = self.subscriptions.values().map(|(_, sub)| sub);
        all.filter(move |sub| sub.filter.scope == Scope::Guarded && user.is_none_or(|user| user == sub.client))
    }

    /// Tells them that a program came.
    pub(super) fn list(&self, user: Option<u64>, pid: u32) -> std::result::Result<(), PinError> {
        self.to_guarded(user).try_for_each(|sub| sub.list(pid))
    }

    /// Tells them that one went. Guarded for all and for one module are two reasons: it stays while
    /// one of them holds.
    pub(super) fn unlist(&self, user: Option<u64>, pid: u32) {
        let still = |sub: &Subscription| {
            self.guarded.contains_key(&pid)
                || self.members.get(&sub.client).is_some_and(|member| member.guarded.contains_key(&pid))
        };
        self.to_guarded(user).filter(|sub| !still(sub)).for_each(|sub| sub.unlist(pid));
    }
}
