//! Threads that a call has left running.
//!
//! They could write into the snapshots of later calls, and nothing can end them but the end of
//! their process. So an orbit whose call leaves some ends once the call is reported, and main goes
//! on with another process: the calls that wait keep their snapshots, the init function runs again.
//! Threads of the init function are the orbit's own, and stay. So do those of calls without areas
//! as long as no call has named one (a module of a watcher): there is no snapshot.

use std::time::{Duration, Instant};

use orbit_linux::{descriptors, process, procfs, thread};

const OWN_THREADS: &str = "/proc/self/task";
/// How long threads may take to end after the function that made them has returned.
const END_WITHIN: Duration = Duration::from_millis(50);

/// The threads that an orbit has before its first call.
pub(crate) struct OwnThreads {
    numbers: Vec<i32>,
    /// What the kernel counts with them; `None`: it shows none, and none is missed.
    count: Option<u32>,
}

impl OwnThreads {
    pub fn now() -> OwnThreads {
        let count = count();
        let numbers = if count.is_some() { living() } else { Vec::new() };
        OwnThreads { numbers, count }
    }

    /// How many others there are; waits a moment for those that are about to end.
    pub fn others(&self) -> usize {
        let Some(own) = self.count else { return 0 };
        // The first costs a read of memory, the second a microsecond.
        if (own <= ALONE && process::has_made_no_thread()) || count().is_none_or(|now| now <= own) {
            return 0;
        }
        let until = Instant::now() + END_WITHIN;
        loop {
            let others = living().iter().filter(|thread| !self.numbers.contains(thread)).count();
            if others == 0 || Instant::now() >= until {
                return others;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What [`count`] gives where there is one thread.
const ALONE: u32 = 3;

/// A number that grows with each thread of this process. `None` without `/proc`.
fn count() -> Option<u32> {
    descriptors::cached(OWN_THREADS).map(|folder| folder.stx_nlink)
}

/// The threads of this process that still run code of it.
fn living() -> Vec<i32> {
    let runs = |number: &i32| {
        procfs::text(format!("{OWN_THREADS}/{number}/stat")).is_ok_and(|stat| !thread::is_exiting(&stat))
    };
    procfs::ids(OWN_THREADS).into_iter().filter(runs).collect()
}
