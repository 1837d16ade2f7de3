//! Memory that main shares with an orbit, and the list of where it lies.
//!
//! A template is a copy of main, and what main maps shared by then, the copy maps too: orbits of a
//! template that is made beside living orbits could write what main hears from the others. So each
//! mapping is in a list, and a new template takes what is listed from itself, by [`shut_out`],
//! before it makes any orbit. Copiers keep theirs: they run no code but the library's.
//!
//! The list takes no lock, for whoever held it in another thread would not be in the copy. Instead,
//! the addresses are listed before anything shared stands there, and until nothing shared stands
//! there any more; only reserved address space is there in between. A fork copies the mappings in
//! one step, so in the copy:
//! - what is shared is listed: it was listed before it was mapped, and is struck off after it is
//!   gone;
//! - what is listed is the library's: it was reserved before it was listed, and is struck off
//!   before it is released.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use orbit_linux::map::{self, Mapping};

/// A place of the list: at most one range. Never freed, but taken again. Aligned so that it lies on
/// one page.
#[repr(align(32))]
struct Place {
    /// Address of the range, 0 for none. Written after `len`.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Set before the place is in the list.
    next: AtomicPtr<Place>,
    taken: AtomicBool,
}

static FIRST: AtomicPtr<Place> = AtomicPtr::new(std::ptr::null_mut());

/// The places of the list, newest first.
fn places() -> impl Iterator<Item = &'static Place> {
    // SAFETY: null, or a place that was leaked when it came to the list.
    let at = |place: &AtomicPtr<Place>| unsafe { place.load(Ordering::Acquire).as_ref() };
    std::iter::successors(at(&FIRST), move |place| at(&place.next))
}

impl Place {
    fn take() -> &'static Place {
        let taken =
            places().find(|p| p.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok());
        taken.unwrap_or_else(|| {
            let place: &'static mut Place = Box::leak(Box::new(Place {
                start: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                next: AtomicPtr::new(std::ptr::null_mut()),
                taken: AtomicBool::new(true),
            }));
            let _ = FIRST.fetch_update(Ordering::AcqRel, Ordering::Acquire, |first| {
                place.next.store(first, Ordering::Relaxed);
                Some(&raw mut *place)
            });
            place
        })
    }

    fn list(&self, start: usize, len: usize) {
        self.len.store(len, Ordering::Relaxed);
        self.start.store(start, Ordering::Release);
    }

    fn strike_off(&self) {
        self.start.store(0, Ordering::Release);
        self.taken.store(false, Ordering::Release);
    }
}

/// A listed mapping of a file, shared with whoever maps it so; unmapped when dropped.
pub(crate) struct Shared {
    mapping: Mapping,
    place: &'static Place,
}

impl Shared {
    /// Maps the first `len` bytes of a file, readable and writable.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Shared> {
        let mapping = Mapping::reserve(len)?;
        let shared = Shared { mapping, place: Place::take() };
        shared.place.list(shared.mapping.addr(), len);
        // SAFETY: the range was reserved just now, and nothing else knows of it.
        unsafe { map::fixed_shared_file(shared.mapping.addr(), len, fd) }?;
        Ok(shared)
    }
}

impl std::ops::Deref for Shared {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // If the kernel rejects (no more mappings allowed), only a template made in this instant
        // has it for longer.
        // SAFETY: the mapping is this value's; whoever used its pointer agreed to stop.
        let _ = unsafe { map::fixed_none(self.mapping.addr(), self.mapping.len()) };
        self.place.strike_off();
    }
}

/// Takes from this process, a copy of main that nobody shares memory with yet, what main shares.
/// The addresses stay reserved, for the copy of main's handles would unmap them when dropped.
///
/// # Safety
/// This process has one thread, which uses none of it.
pub(crate) unsafe fn shut_out() -> io::Result<()> {
    for place in places() {
        let start = place.start.load(Ordering::Acquire);
        if start != 0 {
            // SAFETY: a listed range is the library's, and the caller's word is that nobody uses
            // it.
            unsafe { map::fixed_none(start, place.len.load(Ordering::Relaxed)) }?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn listed(at: usize) -> Vec<usize> {
        let places = places().filter(|p| p.start.load(Ordering::Acquire) == at);
        places.map(|p| p.len.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn a_mapping_is_listed_as_long_as_it_is_there() {
        let file = orbit_linux::memfd::create("orbit-shared-test", 8192, true).expect("memfd");
        let first = Shared::map(file.as_fd(), 8192).expect("mapping");
        let second = Shared::map(file.as_fd(), 4096).expect("mapping");
        // SAFETY: two mappings of one file that only this test has.
        unsafe {
            first.as_ptr().write_volatile(7);
            assert_eq!(second.as_ptr().read_volatile(), 7);
        }
        assert_eq!((listed(first.addr()), listed(second.addr())), (vec![8192], vec![4096]));
        let at = first.addr();
        drop(first);
        assert_eq!((listed(at), listed(second.addr())), (vec![], vec![4096]));
    }

    #[test]
    fn a_copy_made_at_any_moment_shuts_out_all() {
        let over = AtomicBool::new(false);
        let churn = || {
            let file = orbit_linux::memfd::create("orbit-shared-churn", 8192, true).expect("memfd");
            while !over.load(Ordering::Relaxed) {
                let mappings: Vec<_> = (0..8).map(|_| Shared::map(file.as_fd(), 8192).expect("mapping")).collect();
                drop(mappings);
            }
        };
        let statuses: Vec<i32> = std::thread::scope(|threads| {
            threads.spawn(churn);
            threads.spawn(churn);
            let copies = (0..200).map(|_| {
                // SAFETY: libc's fork; the child reads its mappings and exits without running the
                // program's exit handlers.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    // SAFETY: the child has one thread, which uses nothing that is shared.
                    let done = unsafe { shut_out() };
                    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
                    let fine = done.is_ok() && !maps.is_empty() && !maps.contains("orbit-shared-churn");
                    // SAFETY: as above.
                    unsafe { libc::_exit(i32::from(!fine)) }
                }
                let mut status = -1;
                // SAFETY: the child just made.
                unsafe { libc::waitpid(pid, &mut status, 0) };
                status
            });
            let statuses = copies.collect();
            over.store(true, Ordering::Relaxed);
            statuses
        });
        assert!(statuses.iter().all(|status| *status == 0), "{statuses:?}");
    }
}
