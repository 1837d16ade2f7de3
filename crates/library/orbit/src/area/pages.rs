//! Sets of pages, named by their number relative to an area's base.
//!
//! Two forms of one thing: [`Bitmap`] when pages arrive in any order and a set is kept for long,
//! [`PageRuns`] when it is handed on to be walked once. Neither knows addresses or the size of a
//! page.

use crate::units::{Page, Pages};

/// A sorted list of disjoint runs of page numbers, none empty and no two touching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRuns {
    /// `(first, count)`, ascending; `first + count` of one is below `first` of the next.
    runs: Vec<(Page, Pages)>,
    /// The sum of all counts.
    pages: Pages,
}

impl PageRuns {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `count` pages from `first` on. Cheap in ascending order, correct in any.
    pub fn push(&mut self, first: Page, count: Pages) {
        if count == Pages::ZERO {
            return;
        }
        let end = first + count;
        match self.runs.last_mut() {
            None => self.runs.push((first, count)),
            Some(&mut (last, n)) if first > last + n => self.runs.push((first, count)),
            Some((last, n)) if first >= *last => {
                let longer = end.max(*last + *n) - *last;
                self.pages += longer - *n;
                *n = longer;
                return;
            }
            Some(_) => return self.insert(first, end),
        }
        self.pages += count;
    }

    /// The general case of `push`: joins every run that `[first, end)` overlaps or touches.
    fn insert(&mut self, mut first: Page, mut end: Page) {
        let from = self.runs.partition_point(|&(f, n)| f + n < first);
        let to = self.runs.partition_point(|&(f, _)| f <= end);
        for &(f, n) in &self.runs[from..to] {
            first = first.min(f);
            end = end.max(f + n);
            self.pages -= n;
        }
        self.runs.splice(from..to, [(first, end - first)]);
        self.pages += end - first;
    }

    /// Adds every page of `other`.
    pub fn extend(&mut self, other: &PageRuns) {
        if self.runs.is_empty() {
            self.clone_from(other);
            return;
        }
        self.merge(other.iter());
    }

    /// Adds every page of `bits`.
    pub fn union(&mut self, bits: &Bitmap) {
        if !bits.is_empty() {
            self.merge(bits.runs());
        }
    }

    fn merge(&mut self, other: impl Iterator<Item = (Page, Pages)>) {
        let mine = std::mem::take(self);
        let mut mine = mine.runs.into_iter().peekable();
        let mut other = other.peekable();
        loop {
            let next = match (mine.peek(), other.peek()) {
                (Some(a), Some(b)) if a.0 <= b.0 => mine.next(),
                (Some(_), None) => mine.next(),
                (_, Some(_)) => other.next(),
                (None, None) => return,
            };
            if let Some((first, count)) = next {
                self.push(first, count);
            }
        }
    }

    /// The runs as `(first, count)`, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Page, Pages)> + '_ {
        self.runs.iter().copied()
    }

    /// How many pages the set holds.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// How many runs they form.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.pages == Pages::ZERO
    }

    /// Whether `page` is in the set.
    pub fn contains(&self, page: Page) -> bool {
        let at = self.runs.partition_point(|&(f, n)| f + n <= page);
        self.runs.get(at).is_some_and(|&(f, _)| f <= page)
    }

    /// Adds the pages that are both in `self` and in one of the ascending `others` to `out`.
    pub fn common(&self, others: impl Iterator<Item = (Page, Pages)>, out: &mut PageRuns) {
        let mut at = 0;
        for (first, count) in others {
            let end = first + count;
            while let Some(&(mine, n)) = self.runs.get(at).filter(|run| run.0 < end) {
                let from = mine.max(first);
                out.push(from, from.pages_to((mine + n).min(end)));
                if mine + n > end {
                    break;
                }
                at += 1;
            }
        }
    }

    /// Empties the set and keeps its memory.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.pages = Pages::ZERO;
    }
}

/// A set of pages as one bit a page; grows as pages are added.
#[derive(Clone, Debug, Default)]
pub struct Bitmap {
    words: Vec<u64>,
    /// How many bits are set.
    pages: Pages,
}

/// The bit of a page in its word, and the number of that word.
fn place(page: Page) -> (usize, usize) {
    (page.get() % 64, page.get() / 64)
}

/// The bits `from..to` of one word, `0 <= from <= to <= 64`.
fn mask(from: usize, to: usize) -> u64 {
    let low = |n: usize| if n == 64 { u64::MAX } else { (1 << n) - 1 };
    low(to) & !low(from)
}

impl Bitmap {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `f` with each word that `[first, first + count)` touches and the mask of that part.
    fn each(words: &mut [u64], first: Page, count: Pages, mut f: impl FnMut(&mut u64, u64)) {
        let end = (first + count).get().min(words.len() * 64);
        let mut at = first.get();
        while at < end {
            let word = at / 64;
            let to = end.min((word + 1) * 64);
            f(&mut words[word], mask(at % 64, to - word * 64));
            at = to;
        }
    }

    /// Adds `count` pages from `first` on.
    pub fn set(&mut self, first: Page, count: Pages) {
        if count == Pages::ZERO {
            return;
        }
        let words = (first + count).get().div_ceil(64);
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
        let mut new = 0;
        Self::each(&mut self.words, first, count, |word, mask| {
            new += (mask & !*word).count_ones() as usize;
            *word |= mask;
        });
        self.pages += Pages::new(new);
    }

    /// Takes `count` pages from `first` on out of the set.
    pub fn unset(&mut self, first: Page, count: Pages) {
        let mut gone = 0;
        Self::each(&mut self.words, first, count, |word, mask| {
            gone += (mask & *word).count_ones() as usize;
            *word &= !mask;
        });
        self.pages -= Pages::new(gone);
    }

    /// How many of `count` pages from `first` on are in the set.
    pub fn count_in(&self, first: Page, count: Pages) -> Pages {
        let end = (first + count).get().min(self.words.len() * 64);
        let mut at = first.get();
        let mut found = 0;
        while at < end {
            let word = at / 64;
            let to = end.min((word + 1) * 64);
            found += (self.words[word] & mask(at % 64, to - word * 64)).count_ones() as usize;
            at = to;
        }
        Pages::new(found)
    }

    /// Whether `page` is in the set.
    pub fn contains(&self, page: Page) -> bool {
        let (bit, word) = place(page);
        self.words.get(word).is_some_and(|word| word >> bit & 1 == 1)
    }

    /// Adds every page of `runs`.
    pub fn add(&mut self, runs: &PageRuns) {
        for (first, count) in runs.iter() {
            self.set(first, count);
        }
    }

    /// How many pages the set holds.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.pages == Pages::ZERO
    }

    /// Empties the set and keeps its memory.
    pub fn clear(&mut self) {
        if !self.is_empty() {
            self.words.fill(0);
            self.pages = Pages::ZERO;
        }
    }

    /// The runs of pages in the set as `(first, count)`, ascending, no two touching.
    pub fn runs(&self) -> impl Iterator<Item = (Page, Pages)> + '_ {
        self.runs_in(Page::ZERO, Pages::new(self.words.len() * 64))
    }

    /// The same of the `count` pages from `from` on alone.
    pub fn runs_in(&self, from: Page, count: Pages) -> impl Iterator<Item = (Page, Pages)> + '_ {
        let total = (from + count).get().min(self.words.len() * 64);
        let mut at = from.get();
        std::iter::from_fn(move || {
            let first = self.next(at, total, |word| word);
            if first >= total {
                return None;
            }
            at = self.next(first, total, |word| !word);
            Some((Page::new(first), Pages::new(at - first)))
        })
    }

    /// The first page from `at` on, below `total`, whose bit in `view` of its word is set, or
    /// `total`.
    fn next(&self, at: usize, total: usize, view: impl Fn(u64) -> u64) -> usize {
        let mut word = at / 64;
        let mut keep = u64::MAX << (at % 64);
        while word * 64 < total {
            let bits = view(self.words[word]) & keep;
            if bits != 0 {
                return total.min(word * 64 + bits.trailing_zeros() as usize);
            }
            keep = u64::MAX;
            word += 1;
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_testing::Random;
    use std::collections::BTreeSet;

    /// Both forms agree with an ordered set over random histories.
    #[test]
    fn runs_and_bitmaps_agree_with_a_set() {
        let mut drawn = Random::new(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: usize| drawn.index(below);
        let mut run = |from: usize, most: usize| (Page::new(random(from)), Pages::new(random(most)));
        for _ in 0..300 {
            let (mut runs, mut bits, mut model) = (PageRuns::new(), Bitmap::new(), BTreeSet::new());
            for _ in 0..run(60, 1).0.get() {
                let (first, count) = run(400, 90);
                runs.push(first, count);
                bits.set(first, count);
                model.extend(first.run(count));
            }
            assert_eq!((runs.pages().get(), bits.pages().get()), (model.len(), model.len()));
            assert_eq!(runs.iter().collect::<Vec<_>>(), bits.runs().collect::<Vec<_>>());
            assert_eq!(runs.iter().flat_map(|(first, count)| first.run(count)).collect::<BTreeSet<_>>(), model);
            let (first, count) = run(400, 200);
            assert_eq!(bits.count_in(first, count).get(), model.range(first..first + count).count());
            let inside: Vec<_> = bits.runs_in(first, count).flat_map(|(first, count)| first.run(count)).collect();
            assert_eq!(inside, model.range(first..first + count).copied().collect::<Vec<_>>());
            let mut other = Bitmap::new();
            for _ in 0..run(5, 1).0.get() {
                let (first, count) = run(500, 100);
                other.set(first, count);
            }
            let (mut common, mut theirs) = (PageRuns::new(), PageRuns::new());
            theirs.union(&other);
            runs.common(theirs.iter(), &mut common);
            let both = common.iter().flat_map(|(first, count)| first.run(count)).collect::<BTreeSet<_>>();
            assert_eq!(both, model.iter().copied().filter(|page| other.contains(*page)).collect());
            runs.union(&other);
            model.extend(other.runs().flat_map(|(first, count)| first.run(count)));
            assert_eq!(runs.iter().flat_map(|(first, count)| first.run(count)).collect::<BTreeSet<_>>(), model);
            bits.unset(first, count);
            assert_eq!(bits.count_in(first, count), Pages::ZERO);
            assert_eq!(bits.pages(), bits.runs().map(|(_, n)| n).sum());
            for page in (0..600).map(Page::new) {
                assert_eq!(runs.contains(page), model.contains(&page));
            }
        }
    }
}
