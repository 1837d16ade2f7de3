//! The detector that decides by examinations; [`watch::Ahd`] is its face.

pub(crate) mod at_lock;
pub(crate) mod blocked;
pub(crate) mod busy;
pub(crate) mod common_memory;
pub(crate) mod describe;
pub(crate) mod exam;
pub(crate) mod executions;
pub(crate) mod history;
pub(crate) mod holders;
pub(crate) mod learn;
pub(crate) mod named;
pub(crate) mod passes;
pub(crate) mod proc;
pub(crate) mod progress;
pub(crate) mod queues;
pub(crate) mod rests;
pub(crate) mod sections;
pub(crate) mod shares;
pub(crate) mod sight;
pub(crate) mod signals;
pub(crate) mod standstill;
pub(crate) mod stays;
pub(crate) mod thread;
pub(crate) mod watch;
