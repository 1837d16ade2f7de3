//! P_INTR: interrupts, soft interrupts and exceptions (page faults of programs, and faults that
//! become signals), at the kernel's tracepoints. Operation: counts since boot. Fallback without
//! kernel programs: the counts only.

use super::{
    proc,
    traced::{self, Traced},
};
use orbit_rmk::{Command, Kind, Pin, PinError, PinKind, Reply, Subscription};
use std::sync::Arc;

pub(super) const KIND: PinKind = PinKind {
    name: "P_INTR",
    about: "interrupts and exceptions: events, durations, counts",
    facility: "kernel programs at the interrupts' tracepoints",
    operations: &["InterruptCounts"],
    events: &[Kind::Interrupt, Kind::SoftInterrupt, Kind::PageFault, Kind::Exception],
    probe: &traced::probe,
    load: &|env| Ok(Box::new(Intr { traced: Traced::new(env) })),
};

struct Intr {
    traced: Traced,
}

impl Pin for Intr {
    fn command(&mut self, _user: u64, command: &Command) -> Result<Reply, PinError> {
        match command {
            Command::InterruptCounts => Ok(Reply::Interrupts { counts: proc::interrupt_counts()? }),
            _ => Err(PinError::NotMine),
        }
    }

    fn subscribe(&mut self, subscription: &Arc<Subscription>) -> Result<(), PinError> {
        let programs: &[&str] = match subscription.kind {
            Kind::Interrupt => &["irq_entry", "irq_exit"],
            Kind::SoftInterrupt => &["soft_entry", "soft_exit"],
            Kind::PageFault => &["page_fault"],
            Kind::Exception => &["signal_generate"],
            _ => return Err(PinError::NotMine),
        };
        self.traced.subscribe(subscription, programs, 0)
    }

    fn unsubscribe(&mut self, subscription: &Subscription) {
        self.traced.unsubscribe(subscription);
    }

    fn forget(&mut self, _user: u64) {}
}
