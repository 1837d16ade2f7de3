//! The truth against which the detection is held: does each CPU still run threads of user space?
//!
//! A thread pinned to every CPU, of higher priority than the detection's own, notes that it ran and
//! judges the other CPUs by its own rounds, so that a machine whose host is busy accuses no CPU. It
//! shares nothing with the detection.

use super::{
    line,
    machine::{now_ns, pin, sleep_ms, urgent},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Time between two rounds.
const ROUND_MS: u64 = 20;

/// When each CPU's thread last ran, and the longest time between two times; monotonic nanoseconds.
pub struct Lives {
    last: Vec<AtomicU64>,
    longest: Vec<AtomicU64>,
}

impl Lives {
    /// Starts the threads, which never end. `dead` is called, by a thread of a living CPU, `rounds`
    /// rounds of its own after another's last: with that CPU and the time of its last sign of life.
    pub fn start(cpus: usize, rounds: u64, dead: impl Fn(usize, u64) + Send + Sync + 'static) -> Arc<Lives> {
        let all = |value: u64| (0..cpus).map(|_| AtomicU64::new(value)).collect();
        let lives = Arc::new(Lives { last: all(now_ns()), longest: all(0) });
        let dead = Arc::new(dead);
        for cpu in 0..cpus {
            let (lives, dead) = (lives.clone(), dead.clone());
            std::thread::spawn(move || {
                pin(cpu);
                urgent(95);
                let mut seen = vec![(0, 0); cpus];
                for round in 0u64.. {
                    sleep_ms(ROUND_MS);
                    let now = now_ns();
                    let before = lives.last[cpu].swap(now, Relaxed);
                    lives.longest[cpu].fetch_max(now - before, Relaxed);
                    // Ten times a second.
                    if round % 5 == 0 {
                        line::beat();
                    }
                    for (other, seen) in seen.iter_mut().enumerate() {
                        let last = lives.last[other].load(Relaxed);
                        *seen = if last == seen.0 { (last, seen.1 + 1) } else { (last, 0) };
                        if seen.1 == rounds {
                            dead(other, last);
                        }
                    }
                }
            });
        }
        lives
    }

    /// The longest time for which a CPU's thread did not run, since the last time that this was
    /// asked; milliseconds.
    pub fn longest_ms(&self, cpu: usize) -> u64 {
        self.longest[cpu].swap(0, Relaxed) / 1_000_000
    }
}
