//! What the frames hold, in both directions.

use orbit_rmk::{Command, Filter, Kind, Reply};
use serde::{Deserialize, Serialize};

/// Of this protocol: both sides say it first, and only equal ones continue.
pub(crate) const VERSION: u32 = 1;

/// From the node that uses pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    Hello {
        version: u32,
    },
    Ping,
    Command {
        ticket: u64,
        /// The module there on whose behalf it is: what a pin makes is for it alone.
        user: u64,
        pin: String,
        command: Command,
    },
    Subscribe {
        ticket: u64,
        user: u64,
        /// Names the subscription from now on.
        handle: u64,
        pin: String,
        kind: Kind,
        filter: Filter,
    },
    Unsubscribe {
        user: u64,
        handle: u64,
    },
    /// The module uses the pin no more.
    Forget {
        user: u64,
        pin: String,
    },
}

/// From the node whose pins they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Hello {
        version: u32,
    },
    Pong,
    Done {
        ticket: u64,
        /// Or a sentence.
        result: Result<Reply, String>,
    },
    Events {
        handle: u64,
        counts: Counts,
        /// As bytes, one after the other.
        events: Vec<u8>,
    },
}

/// What became of a subscription's events at the node so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub passed: u64,
    pub due: u64,
    pub lost: u64,
    pub unlisted: u64,
}
