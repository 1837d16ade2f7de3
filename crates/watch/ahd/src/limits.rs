//! What the rules allow, in one place.

/// Limits of the rules; [`Limits::default`] is right for servers and batch programs alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// How long a thread may be away from its loop, a request may wait for its answer, and a lock
    /// may be waited for, s. What took longer before may take longer again. Below 5 s healthy
    /// programs are reported too: see the README.
    pub limit: f64,
    /// A home is left for this times its longest absence before that is reported.
    pub longest_times: f64,
    /// A guess that lasts for this times what was allowed is likely.
    pub likely_times: f64,
    /// How long the threads of a closed set must have slept, s; a ring of locks needs none.
    pub still: f64,
    /// Returns to a loop before it counts as learnt.
    pub returns: u64,
    /// Time over which they are spread at least, s.
    pub learn: f64,
    /// An execution of a section may use this times the largest mean of an exit's last executions,
    pub factor: f64,
    /// and so much CPU at least, ns.
    pub floor: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            limit: 5.0,
            longest_times: 3.0,
            likely_times: 2.0,
            still: 1.0,
            returns: 50,
            learn: 2.0,
            factor: 4.0,
            floor: 120_000_000,
        }
    }
}

impl Limits {
    /// The same with another limit, s.
    pub fn with_limit(limit: f64) -> Limits {
        Limits { limit, still: Limits::default().still.min(limit), ..Limits::default() }
    }
}
