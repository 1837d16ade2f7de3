//! Pages that are written between almost every two harvests: cheaper left unprotected and always
//! sent.
//!
//! A tracked page costs main its first write after each harvest (about 1 us: a fault that the
//! kernel resolves); a page sent for nothing costs a copy. They break even when a page is written
//! between about 45 % of the harvests (the paper's dynamic page mode). Leaving a run out makes one
//! more scan call, so only long enough runs are left out, and few of them.
//!
//! A run is left out for [`HARVESTS_LEFT_OUT`] harvests. Then it is protected again and watched
//! like any other page, and comes back only if the last 16 harvests say so: a page that went quiet
//! costs at most that many copies too many.

use super::super::pages::PageRuns;
use crate::units::{Page, Pages};

/// A page is hot if it was reported in at least this many of the last 16 harvests.
const HOT_FROM_REPORTS: u32 = 8;
/// Harvests between two choices, and the length of a page's history.
const HARVESTS_BETWEEN_CHOICES: u64 = 16;
/// Harvests for which a run is left out.
const HARVESTS_LEFT_OUT: u64 = 112;
/// A run pays for its scan call from this many pages on.
const MIN_RUN: Pages = Pages::new(2);
/// Runs left out at a time.
const MOST_RUNS: usize = 8;
/// Pages left out at a time, which bounds what a program that falls quiet pays.
const MOST_PAGES: Pages = Pages::new(512);

/// A run of pages left unprotected.
#[derive(Clone, Copy, Debug)]
struct HotRun {
    first: Page,
    count: Pages,
    /// The harvest that protects it again.
    until: u64,
}

/// What is known about how often pages are written.
#[derive(Debug, Default)]
pub(super) struct Hot {
    /// Harvests so far.
    harvest: u64,
    /// For each page the low 16 bits of the harvest that last reported it, and a bit for each of 16
    /// harvests up to then.
    history: Vec<(u16, u16)>,
    /// Sorted, disjoint.
    runs: Vec<HotRun>,
}

impl Hot {
    /// A harvest begins: runs that were left out long enough are scanned by it again.
    pub fn begin(&mut self) {
        self.harvest += 1;
        let now = self.harvest;
        let history = &mut self.history;
        self.runs.retain(|run| {
            let stays = now < run.until;
            if !stays {
                // Their reports while left out say nothing.
                history[run.first.get()..(run.first + run.count).get()].fill((0, 0));
            }
            stays
        });
    }

    /// The runs left out, ascending, as `(first, count)`.
    pub fn runs(&self) -> impl Iterator<Item = (Page, Pages)> + '_ {
        self.runs.iter().map(|run| (run.first, run.count))
    }

    /// The harvest that began last reported these pages.
    pub fn learn(&mut self, reported: &PageRuns) {
        let Some(end) = reported.iter().last().map(|(first, count)| (first + count).get()) else { return };
        if end > self.history.len() {
            self.history.resize(end, (0, 0));
        }
        let now = self.harvest as u16;
        for (first, count) in reported.iter() {
            for (last, bits) in &mut self.history[first.get()..(first + count).get()] {
                let passed = now.wrapping_sub(*last);
                *bits = if passed < 16 { *bits << passed | 1 } else { 1 };
                *last = now;
            }
        }
        if self.harvest.is_multiple_of(HARVESTS_BETWEEN_CHOICES) {
            self.choose(reported);
        }
    }

    fn choose(&mut self, reported: &PageRuns) {
        let mut found = PageRuns::new();
        for (first, count) in reported.iter() {
            for page in first.run(count) {
                if self.history[page.get()].1.count_ones() >= HOT_FROM_REPORTS && !self.is_hot(page) {
                    found.push(page, Pages::ONE);
                }
            }
        }
        let mut found: Vec<_> = found.iter().filter(|&(_, count)| count >= MIN_RUN).collect();
        found.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        let mut pages: Pages = self.runs.iter().map(|run| run.count).sum();
        for (first, count) in found {
            let count = count.min(MOST_PAGES - pages);
            if self.runs.len() == MOST_RUNS || count < MIN_RUN {
                break;
            }
            pages += count;
            self.runs.push(HotRun { first, count, until: self.harvest + HARVESTS_LEFT_OUT });
        }
        self.runs.sort_by_key(|run| run.first);
    }

    fn is_hot(&self, page: Page) -> bool {
        let at = self.runs.partition_point(|run| run.first + run.count <= page);
        self.runs.get(at).is_some_and(|run| run.first <= page)
    }
}
