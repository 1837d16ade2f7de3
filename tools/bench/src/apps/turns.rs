//! Servers that take turns under one load, several times a round, so that what changes on the
//! machine meanwhile falls on all of them alike.
//!
//! Each round has servers of its own: two of the same kind differ, by where their threads and pages
//! are, for as long as they run. A second server of the rival's kind among them shows by how much.

use crate::stats::{Samples, Shuffle, Summary};
use orbit_console::out::Failure;

/// Turns that each server has in a round.
const TURNS: usize = 4;

/// What a load came to.
#[derive(Clone, Copy, Default)]
pub struct Done {
    pub requests: f64,
    pub seconds: f64,
    /// CPU time of the server and its orbits.
    pub cpu_seconds: f64,
}

/// Figures of one kind of server, a sample a round: requests a second, and microseconds of CPU time
/// a request.
#[derive(Default)]
pub struct Figures {
    rate: Samples,
    cpu: Samples,
}

impl Figures {
    fn add(&mut self, done: Done) {
        self.rate.add_figure(done.requests / done.seconds);
        self.cpu.add_figure(done.cpu_seconds * 1e6 / done.requests.max(1.0));
    }

    /// Requests a second; CPU time a request.
    pub fn summaries(&self) -> [Option<Summary>; 2] {
        [self.rate.summary(), self.cpu.summary()]
    }
}

/// A round: the servers take turns, in random order, each for `seconds` in all. `figures` are of
/// the same kinds.
///
/// # Errors
/// Those of `load`.
pub fn round<S>(
    servers: &[S],
    figures: &mut [Figures],
    shuffle: &mut Shuffle,
    seconds: f64,
    load: impl Fn(&S, f64) -> Result<Done, Failure>,
) -> Result<(), Failure> {
    let mut sums = vec![Done::default(); servers.len()];
    for _ in 0..TURNS {
        let mut order: Vec<usize> = (0..servers.len()).collect();
        shuffle.shuffle(&mut order);
        for nth in order {
            let done = load(&servers[nth], seconds / TURNS as f64)?;
            sums[nth].requests += done.requests;
            sums[nth].seconds += done.seconds;
            sums[nth].cpu_seconds += done.cpu_seconds;
        }
    }
    for (figures, done) in figures.iter_mut().zip(sums) {
        figures.add(done);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::median;
    use std::cell::RefCell;

    #[test]
    fn each_server_has_its_share_of_every_round() {
        let loads = RefCell::new(Vec::new());
        let mut figures = [Figures::default(), Figures::default()];
        for _ in 0..3 {
            round(&[1.0, 2.0], &mut figures, &mut Shuffle::new(1), 2.0, |server, seconds| {
                loads.borrow_mut().push(*server);
                Ok(Done { requests: 100.0 * server * seconds, seconds, cpu_seconds: 0.001 * seconds })
            })
            .unwrap();
        }
        assert_eq!(loads.borrow().iter().filter(|server| **server == 1.0).count(), 3 * TURNS);
        let [slow, fast] = figures.map(|of| of.summaries().map(median));
        assert_eq!((slow[0], fast[0]), (100.0, 200.0));
        assert!((slow[1] - 10.0).abs() < 1e-9 && (fast[1] - 5.0).abs() < 1e-9, "{slow:?} {fast:?}");
    }
}
