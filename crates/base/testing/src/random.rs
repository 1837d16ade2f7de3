//! Random numbers whose seed repeats a run.

use std::time::SystemTime;

/// A sequence of random numbers (xorshift64): the same for the same seed, on every machine.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Random {
        // Zero is the one state that xorshift never leaves.
        Random(if seed == 0 { 1 } else { seed })
    }

    /// The sequence of `ORBIT_SEED`, or of the clock. Prints the seed, so that a failed run can be
    /// repeated.
    ///
    /// # Panics
    /// If `ORBIT_SEED` is no number.
    pub fn from_environment() -> Random {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Random::from_environment_or(now.map_or(1, |now| now.as_nanos() as u64))
    }

    /// The sequence of `ORBIT_SEED`, or of this seed. Prints the seed.
    ///
    /// # Panics
    /// If `ORBIT_SEED` is no number.
    pub fn from_environment_or(seed: u64) -> Random {
        let seed = std::env::var("ORBIT_SEED").map_or(seed, |seed| seed.parse().expect("ORBIT_SEED"));
        println!("ORBIT_SEED={seed}");
        Random::new(seed)
    }

    /// A sequence of its own for the thread of this number.
    pub fn fork(&self, thread: u64) -> Random {
        Random::new(self.0 ^ (thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below this one, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.draw() >> 8) % bound
    }

    /// An index below this length, which is not zero.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// So many bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.draw() as u8).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_repeats_its_sequence_and_every_number_is_in_its_bound() {
        for seed in [0, 1, 7, u64::MAX] {
            let (mut one, mut two) = (Random::new(seed), Random::new(seed));
            for bound in 1..500 {
                let number = one.below(bound);
                assert_eq!(number, two.below(bound), "seed {seed}");
                assert!(number < bound, "seed {seed}");
            }
        }
        let drawn: std::collections::BTreeSet<u64> = {
            let mut random = Random::new(0);
            (0..10_000).map(|_| random.draw()).collect()
        };
        assert_eq!(drawn.len(), 10_000, "a number came twice");
    }
}
