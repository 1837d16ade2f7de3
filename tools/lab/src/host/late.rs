//! How late this machine itself is: a figure of an emulated machine is worth no more than the
//! processors that emulate it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// A thread that sleeps and notes by how much it overslept; it never ends.
pub struct Late(Arc<AtomicU64>);

impl Late {
    pub fn start() -> Late {
        let most = Arc::new(AtomicU64::new(0));
        let own = most.clone();
        thread::spawn(move || {
            let nap = Duration::from_millis(10);
            loop {
                let begun = Instant::now();
                thread::sleep(nap);
                own.fetch_max(begun.elapsed().saturating_sub(nap).as_millis() as u64, Relaxed);
            }
        });
        Late(most)
    }

    /// The most since this was last asked, in milliseconds.
    pub fn most_ms(&self) -> u64 {
        self.0.swap(0, Relaxed)
    }
}
