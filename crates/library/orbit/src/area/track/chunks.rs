//! Which 2 MiB chunks of an area were ever touched, of those where a page that nobody touched reads
//! as zeros.
//!
//! To write-protect a page that is not there gives it a page table, and each later scan walks that:
//! an area of 8 GiB of which 64 MiB are used costs 10 ms a scan then. So a chunk stays as it is
//! until one of its pages is there: finding that takes 10 us for 1 GiB in which nothing is.
//!
//! **No write is lost.** A page of an unknown chunk is there from its first write on, and stays (or
//! is swapped out, which is found too) until main gives it back, when it reads as zeros again. So a
//! harvest that finds none finds that no page of the chunk differs from what every orbit has:
//! zeros. A known chunk stays known.

use super::super::pages::Bitmap;
use crate::units::{Address, Bytes, Page, Pages};

/// Bytes of a chunk: what one page table maps.
const CHUNK: Bytes = Bytes::new(2 << 20);

/// The chunks of one range of pages.
#[derive(Debug)]
pub(super) struct Chunks {
    /// By number of the chunk: chunks are large pages here.
    known: Bitmap,
    /// Pages of a chunk.
    unit: Pages,
    /// Pages from the first chunk's beginning to the range's: chunks lie at multiples of their
    /// size.
    skew: Pages,
}

/// Pages that lie in chunks of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub first: Page,
    pub end: Page,
    pub known: bool,
}

impl Chunks {
    /// None known, of pages of `page` bytes from address `base` on.
    pub fn new(base: Address, page: Bytes) -> Chunks {
        let skew = Bytes::new(base.get() % CHUNK.get()).whole_pages(page);
        Chunks { known: Bitmap::new(), unit: CHUNK.whole_pages(page), skew }
    }

    /// The chunk of a page.
    fn of(&self, page: Page) -> Page {
        Page::new((page + self.skew).get() / self.unit.get())
    }

    /// The first page of a chunk; the range's first where the chunk begins before it.
    fn begin(&self, chunk: Page) -> Page {
        Page::new((chunk.get() * self.unit.get()).saturating_sub(self.skew.get()))
    }

    /// Pages `from..to` in order, as runs of pages in known and in unknown chunks.
    pub fn segments(&self, from: Page, to: Page) -> Vec<Segment> {
        let mut segments = Vec::new();
        if from >= to {
            return segments;
        }
        let mut at = from;
        let (low, high) = (self.of(from), self.of(to - Pages::ONE) + Pages::ONE);
        for (chunk, count) in self.known.runs_in(low, high - low) {
            let first = self.begin(chunk).max(from);
            let end = self.begin(chunk + count).min(to);
            if at < first {
                segments.push(Segment { first: at, end: first, known: false });
            }
            segments.push(Segment { first, end, known: true });
            at = end;
        }
        if at < to {
            segments.push(Segment { first: at, end: to, known: false });
        }
        segments
    }

    /// Makes the chunks known in which `count` pages from `first` on lie. Returns the pages of
    /// these chunks, not below 0.
    pub fn learn(&mut self, first: Page, count: Pages) -> (Page, Page) {
        let (low, high) = (self.of(first), self.of(first + count - Pages::ONE) + Pages::ONE);
        self.known.set(low, high - low);
        (self.begin(low), self.begin(high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_testing::Random;

    #[test]
    fn segments_cover_each_page_once_and_say_what_was_learnt() {
        let mut drawn = Random::new(0x2545_f491_4f6c_dd1d);
        let mut random = |below: usize| drawn.index(below);
        for round in 0..200 {
            let base = random(1 << 12) * 4096;
            let mut chunks = Chunks::new(Address::new(base), Bytes::new(4096));
            let chunk_of = |page: usize| (base / 4096 + page) / 512 - base / 4096 / 512;
            let mut model = std::collections::BTreeSet::new();
            for _ in 0..random(12) {
                let (first, count) = (random(20_000), 1 + random(900));
                let (from, to) = chunks.learn(Page::new(first), Pages::new(count));
                assert!(from.get() <= first && to.get() >= first + count, "round {round}");
                model.extend(chunk_of(first)..=chunk_of(first + count - 1));
            }
            let (from, to) = (random(10_000), random(24_000));
            let mut at = from;
            for Segment { first, end, known } in chunks.segments(Page::new(from), Page::new(to)) {
                let (first, end) = (first.get(), end.get());
                assert!(first == at && first < end, "round {round}: {first}..{end} after {at}");
                for page in first..end {
                    assert_eq!(model.contains(&chunk_of(page)), known, "round {round}: page {page}");
                }
                at = end;
            }
            assert_eq!(at, to.max(from), "round {round}");
        }
    }
}
