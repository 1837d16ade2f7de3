//! What the tests of areas share: engines that are available here, and an image that is kept up to
//! date by harvests alone.
#![allow(dead_code, reason = "each test uses its own part")]

use orbit::area::track::Tracker;
use orbit::area::{Area, Engine, OwedSet, PageRuns};
use orbit::units::{Address, Bytes, Page, Pages};
use orbit_linux::map::Mapping;

pub const PAGE: usize = 4096;

/// The three engines that find written pages, without those that are not available here; says which
/// it skips.
pub fn engines() -> Vec<Engine> {
    [Engine::Track, Engine::Compare, Engine::Copy].into_iter().filter(|&e| can_have(e)).collect()
}

/// Whether a tracker can have this engine here; prints the skip if not.
pub fn can_have(engine: Engine) -> bool {
    let memory = Mapping::anonymous(PAGE, false).unwrap();
    match Tracker::new(Address::new(memory.addr()), Bytes::new(PAGE), engine) {
        Ok(_) => true,
        Err(error) => {
            println!("SKIP: needs engine {engine}: {error}");
            false
        }
    }
}

/// A copy of a range that is only ever changed by what a harvest reports.
pub struct Image {
    base: usize,
    bytes: Vec<u8>,
}

impl Image {
    pub fn new(base: usize, len: usize) -> Self {
        Image { base, bytes: vec![0; len] }
    }

    fn copy(&mut self, runs: &PageRuns, source: &dyn Fn(Page) -> *const u8) {
        for (first, count) in runs.iter() {
            for page in first.run(count) {
                let at = page.get() * PAGE;
                let to = &mut self.bytes[at..at + PAGE];
                // SAFETY: the source is a readable page that lives as long as the tracker; the C
                // function copies bytes that other threads may be writing, which is what a snapshot
                // does.
                unsafe { libc::memcpy(to.as_mut_ptr().cast(), source(page).cast(), PAGE) };
            }
        }
    }

    /// Harvests the first `used` pages and copies what was reported.
    pub fn update(&mut self, tracker: &mut Tracker, used: usize) -> PageRuns {
        let mut runs = PageRuns::new();
        tracker.grow(Pages::new(used)).unwrap();
        tracker.harvest(&mut runs).unwrap();
        self.copy(&runs, &|page| tracker.source(page));
        runs
    }

    /// The same through an area.
    pub fn update_from(&mut self, area: &Area, mine: &OwedSet) -> PageRuns {
        let mut runs = PageRuns::new();
        area.snapshot_pages(mine, &mut runs).unwrap();
        area.with_source(|source| self.copy(&runs, source)).unwrap();
        runs
    }

    /// Copies pages that were reported to somebody else's harvest.
    pub fn take(&mut self, area: &Area, runs: &PageRuns) {
        area.with_source(|source| self.copy(runs, source)).unwrap();
    }

    /// The first page of the first `used` that is not as in memory. Only meaningful while nobody
    /// writes.
    pub fn wrong_page(&self, used: usize) -> Option<usize> {
        (0..used).find(|&page| {
            let mine = &self.bytes[page * PAGE..(page + 1) * PAGE];
            // SAFETY: a mapped page, and nobody writes to it now.
            let theirs = unsafe { std::slice::from_raw_parts((self.base + page * PAGE) as *const u8, PAGE) };
            mine != theirs
        })
    }

    /// The word at a byte offset.
    pub fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }
}

/// Writes a word at a byte offset of a mapped range.
pub fn write(base: usize, at: usize, value: u64) {
    // SAFETY: the tests pass offsets inside a range they have mapped, aligned to 8.
    let word = unsafe { std::sync::atomic::AtomicU64::from_ptr((base + at) as *mut u64) };
    word.store(value, std::sync::atomic::Ordering::Relaxed);
}

/// Reads a word at a byte offset of a mapped range.
pub fn read(base: usize, at: usize) -> u64 {
    // SAFETY: as for `write`.
    let word = unsafe { std::sync::atomic::AtomicU64::from_ptr((base + at) as *mut u64) };
    word.load(std::sync::atomic::Ordering::Relaxed)
}

/// Runs `f` in a forked child, and fails if it does not come to its end there. For what changes a
/// process for good.
pub fn in_child(f: impl FnOnce()) {
    // SAFETY: glibc makes fork safe for its allocator; the child runs `f` alone and leaves by
    // _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // The harness's capture ends with the child, so the message goes out at once.
        std::panic::set_hook(Box::new(|info| {
            let text = format!("in the child: {info}\n");
            // SAFETY: the text lives through the call.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        }));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!ended)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed, see standard error");
}
