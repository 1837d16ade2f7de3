//! Tells a process apart from one it was forked from, for the price of one load.
//!
//! A child inherits main's descriptors for `userfaultfd` and `pagemap`, and these continue acting
//! on main's memory: a harvest in the child would protect main's pages and lose main's writes. So
//! every tracker remembers the generation it was made in, and fails in another. The word lies on a
//! page that the kernel wipes at fork, raw clones included, where `pthread_atfork` handlers do not
//! run.

use orbit_linux::map::Mapping;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The wiped page, or `None` where the kernel cannot wipe (before 4.14); then the process id
/// serves.
static PAGE: OnceLock<Option<Mapping>> = OnceLock::new();
/// The next generation to give out. Copied by fork, so a child never repeats what its ancestors
/// used.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn wiped_page() -> Option<Mapping> {
    let page = Mapping::anonymous(orbit_linux::map::page_size(), false).ok()?;
    // SAFETY: the range is the mapping just made, private and anonymous; the advice changes what a
    // later fork copies.
    unsafe { orbit_linux::map::advise(page.addr(), page.len(), libc::MADV_WIPEONFORK) }.ok()?;
    Some(page)
}

/// The generation of this process: equal in all its threads and for all its life, different after a
/// fork.
#[inline]
pub fn generation() -> u64 {
    if let Some(Some(page)) = PAGE.get() {
        // SAFETY: the page is mapped, writable and aligned for as long as the static lives, and
        // touched in this file alone.
        let seen = unsafe { AtomicU64::from_ptr(page.as_ptr().cast()) }.load(Ordering::Relaxed);
        if seen != 0 {
            return seen;
        }
    }
    begin()
}

/// The generation of a process that asks for the first time.
#[cold]
fn begin() -> u64 {
    let Some(page) = PAGE.get_or_init(wiped_page) else {
        // The top bit keeps process ids apart from counted generations.
        return 1 << 63 | u64::from(std::process::id());
    };
    // SAFETY: as above.
    let word = unsafe { AtomicU64::from_ptr(page.as_ptr().cast()) };
    let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
    // Two threads may both find it wiped; the first one's number stands.
    match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        Err(other) => other,
    }
}
