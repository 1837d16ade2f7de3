//! Sets of bytes of an object.

/// Offsets beyond this are not kept: objects are larger only rarely.
const MAX_OFFSET: u64 = 64 << 20;

/// Which bytes, by their distance from an object's first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes(Vec<u64>);

impl Bytes {
    pub(crate) fn add(&mut self, from: u64, until: u64) {
        for at in from..until.min(MAX_OFFSET) {
            let word = (at / 64) as usize;
            if word >= self.0.len() {
                self.0.resize(word + 1, 0);
            }
            self.0[word] |= 1 << (at % 64);
        }
    }

    /// How many.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// First and last byte of each run.
    pub(crate) fn runs(&self) -> Vec<[u64; 2]> {
        let mut runs: Vec<[u64; 2]> = Vec::new();
        let all = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        for at in
            all.flat_map(|(i, &word)| (0..64u64).filter(move |b| word >> b & 1 == 1).map(move |b| i as u64 * 64 + b))
        {
            match runs.last_mut() {
                Some([_, last]) if *last + 1 == at => *last = at,
                _ => runs.push([at, at]),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_and_stay_apart() {
        let mut bytes = Bytes::default();
        for (from, until) in [(60, 70), (0, 4), (4, 8), (9, 10), (MAX_OFFSET, MAX_OFFSET + 5)] {
            bytes.add(from, until);
        }
        assert_eq!(bytes.runs(), [[0, 7], [9, 9], [60, 69]]);
        assert_eq!(bytes.count(), 19);
    }
}
