//! A node's pins as pins of the core here: `P_NET@db1` does what P_NET does on the node `db1`.
//!
//! Times of its events are the node's own. Numbers of processes are the node's. Programs are
//! guarded on their own node, so a subscription names processes, or everyone. `P_LINK@db1` is the
//! link itself: it has no operations, and works whether the node is heard or not.

use crate::link::{CALL_TIME, Link, Standing};
use orbit_rmk::{Command, Env, Kind, Pin, PinError, PinKind, Probe, Reply, Scope, Subscription};
use std::sync::Arc;

/// Events that each pin of a node raises besides its own.
const LINK_EVENTS: [Kind; 2] = [Kind::LinkLost, Kind::LinkBack];

/// The pins of a node, like these of the core here, and its link.
///
/// Their names stay in memory for the life of the process: make them once a node.
pub fn of_node(link: &Arc<Link>, like: &[PinKind]) -> Vec<PinKind> {
    let node = link.node().name.clone();
    let remote = like.iter().map(|kind| {
        let events: Vec<Kind> = kind.events.iter().copied().chain(LINK_EVENTS).collect();
        made(link, kind.name, &node, kind.about, kind.operations, events)
    });
    let about = "the link to a node: an event when it is lost, and when it is back";
    let own = made(link, "P_LINK", &node, about, &[], LINK_EVENTS.to_vec());
    remote.chain([own]).collect()
}

fn made(
    link: &Arc<Link>,
    pin: &'static str,
    node: &str,
    about: &'static str,
    operations: &'static [&'static str],
    events: Vec<Kind>,
) -> PinKind {
    let is_link = pin == "P_LINK";
    let its = link.clone();
    let probe = move |_: &Env| match its.standing() {
        Standing::Up { .. } => Probe::Full,
        _ if is_link => Probe::Full,
        Standing::Begun => Probe::Missing(format!("node {} is not connected yet", its.node().name)),
        Standing::Lost { why, .. } => Probe::Missing(format!("node {} is lost: {why}", its.node().name)),
    };
    let its = link.clone();
    let load = move |_: &Env| -> Result<Box<dyn Pin>, PinError> { Ok(Box::new(Remote { link: its.clone(), pin })) };
    PinKind {
        name: Box::leak(format!("{pin}@{node}").into_boxed_str()),
        about,
        facility: "the pin of another node, by mutual TLS",
        operations,
        events: Box::leak(events.into_boxed_slice()),
        probe: Box::leak(Box::new(probe)),
        load: Box::leak(Box::new(load)),
    }
}

/// See the module's head.
struct Remote {
    link: Arc<Link>,
    pin: &'static str,
}

impl Pin for Remote {
    fn command(&mut self, user: u64, command: &Command) -> Result<Reply, PinError> {
        self.link.command(user, self.pin, command, CALL_TIME)
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        if subscription.filter.scope == Scope::Guarded {
            let why = "programs are guarded on their own node: name processes, or everyone";
            return Err(PinError::Refused(why.into()));
        }
        self.link.subscribe(self.pin, subscription)
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.link.unsubscribe(subscription);
    }

    fn forget(&mut self, user: u64) {
        self.link.forget(user, self.pin);
    }
}
