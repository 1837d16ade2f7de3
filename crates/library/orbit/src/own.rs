//! A descriptor of the library's own, in a process that is not the library's: the program, or the
//! task, may close any number and open other files under it. So a descriptor is used, and closed,
//! only as long as its number still names the open file that it named at first.
//!
//! Three things answer that. The *register* says which descriptor of the library has a number: one
//! that the program has closed and whose number the library was given again is the newer one's. The
//! *mark* on the open file sets it apart from any of the program's, also where all files of a kind
//! share one inode. Device and inode settle the rest.
//!
//! Numbers are high, out of the way of the program's own: see [`floor`].

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use orbit_linux::descriptors::{self, File};
use orbit_linux::rlimit::{self, Resource};

use crate::side::is_orbit;

/// Numbers in the register. A descriptor beyond is identified by mark and inode alone.
const REGISTERED: usize = 1 << 16;
/// Where the library's descriptors begin where the limit of descriptors allows it: above what most
/// programs have, and above what many close one by one when they become daemons.
const HIGHEST_FLOOR: u64 = 1088;
/// Where those begin that are shown to the program: `select` takes numbers below 1024.
const HIGHEST_SHOWN_FLOOR: u64 = 512;

/// For each number: which descriptor of the library's has it; 0 for none. Written by whoever makes
/// or drops one, without a lock: a fork may come at any moment.
static REGISTER: [AtomicU32; REGISTERED] = [const { AtomicU32::new(0) }; REGISTERED];
/// One more than the highest number that was ever registered.
static REGISTER_END: AtomicUsize = AtomicUsize::new(0);
/// The number of the descriptor made last.
static SERIAL: AtomicU32 = AtomicU32::new(0);

/// A descriptor of the library's own, or what holds one.
pub(crate) struct Own<T: AsFd = OwnedFd> {
    /// None only while it is dropped.
    value: Option<T>,
    file: File,
    mark: i32,
    serial: u32,
}

/// That the program, or the task, has closed a descriptor of the library's.
#[derive(Debug)]
pub(crate) struct Lost(RawFd);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0;
        if is_orbit() {
            write!(f, "descriptor {number}, which is the orbit's own, was closed by the task")
        } else {
            write!(
                f,
                "descriptor {number}, which is the library's own, was closed by the program (a daemon closes what it \
                 has \
                 inherited before it sets the library up)"
            )
        }
    }
}

impl std::error::Error for Lost {}

impl Own {
    /// Takes a descriptor just made, and moves it out of the program's way.
    pub fn new(fd: OwnedFd) -> io::Result<Own> {
        Own::over(up(fd))
    }

    /// The same for one that the program is shown.
    pub fn shown(fd: OwnedFd) -> io::Result<Own> {
        Own::over(descriptors::move_up(fd, floor_below(HIGHEST_SHOWN_FLOOR, 2)))
    }

    /// Takes a copy of a descriptor of the program's: its open file is left unmarked.
    pub fn of_program(fd: OwnedFd) -> io::Result<Own> {
        let fd = up(fd);
        let mark = descriptors::mark(fd.as_raw_fd());
        Own::register(fd, mark)
    }

    /// Has another number if it has this one.
    pub fn leave(&mut self, number: RawFd) -> io::Result<()> {
        if self.number() != Some(number) {
            return Ok(());
        }
        let copy = descriptors::move_up(self.get()?.try_clone()?, floor());
        *self = Own::over(copy)?;
        Ok(())
    }
}

impl<T: AsFd> Own<T> {
    /// Takes what holds a descriptor that was moved already; see [`up`].
    pub fn over(value: T) -> io::Result<Own<T>> {
        let mark = descriptors::set_mark(value.as_fd());
        Own::register(value, mark)
    }

    fn register(value: T, mark: i32) -> io::Result<Own<T>> {
        let number = value.as_fd().as_raw_fd();
        let (file, _) = descriptors::file_of(number)?;
        // 0 stands for none.
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed) | 1 << 31;
        if let Some(place) = REGISTER.get(number as usize) {
            place.store(serial, Ordering::Release);
            REGISTER_END.fetch_max(number as usize + 1, Ordering::AcqRel);
        }
        Ok(Own { value: Some(value), file, mark, serial })
    }

    /// What was taken, if it is still there. Costs two system calls.
    ///
    /// # Errors
    /// [`Lost`]: its number names nothing any more, or another file.
    pub fn get(&self) -> io::Result<&T> {
        let Some(value) = &self.value else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        self.if_there().ok_or_else(|| io::Error::other(Lost(value.as_fd().as_raw_fd())))
    }

    /// The same without a reason. Async-signal-safe.
    pub fn if_there(&self) -> Option<&T> {
        let value = self.value.as_ref()?;
        let number = value.as_fd().as_raw_fd();
        let registered = REGISTER.get(number as usize).is_none_or(|at| at.load(Ordering::Acquire) == self.serial);
        let is_own = registered
            && descriptors::mark(number) == self.mark
            && descriptors::file_of(number).is_ok_and(|(file, _)| file == self.file);
        is_own.then_some(value)
    }

    /// The descriptor, if it is still there.
    ///
    /// # Errors
    /// As [`Own::get`].
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.get().map(AsFd::as_fd)
    }

    /// Its number, if it is still there.
    pub fn number(&self) -> Option<RawFd> {
        self.fd().ok().map(|fd| fd.as_raw_fd())
    }

    /// Whether it is still there.
    pub fn is_there(&self) -> bool {
        self.get().is_ok()
    }

    /// The file it names.
    pub fn file(&self) -> File {
        self.file
    }
}

impl<T: AsFd> Drop for Own<T> {
    fn drop(&mut self) {
        let is_there = self.is_there();
        let Some(value) = self.value.take() else { return };
        if let Some(place) = REGISTER.get(value.as_fd().as_raw_fd() as usize) {
            // Before it is closed: from then on the number may be given to another of the
            // library's.
            let _ = place.compare_exchange(self.serial, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        if !is_there {
            // Closed already; what has its number now is the program's.
            std::mem::forget(value);
        }
    }
}

impl<T: AsFd> fmt::Debug for Own<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.value.as_ref().map(|value| value.as_fd().as_raw_fd());
        f.debug_struct("Own").field("number", &number).finish()
    }
}

/// Moves a descriptor just made out of the program's way.
pub(crate) fn up(fd: OwnedFd) -> OwnedFd {
    descriptors::move_up(fd, floor())
}

/// The number from which on the library's own descriptors lie: three quarters of what the process
/// may have, 1088 at most (a table of descriptors is as long as its highest number, and every fork
/// copies it).
fn floor() -> RawFd {
    floor_below(HIGHEST_FLOOR, 4)
}

/// All but one part in so many of what the process may have, at most this.
fn floor_below(most: u64, parts: u64) -> RawFd {
    let allowed = rlimit::get(0, Resource::Files).map_or(0, |(soft, _)| soft);
    (allowed - allowed / parts).min(most) as RawFd
}

/// The numbers that the library has registered in this process.
pub(crate) fn registered() -> impl Iterator<Item = RawFd> {
    let end = REGISTER_END.load(Ordering::Acquire);
    let taken = |place: &(usize, &AtomicU32)| place.1.load(Ordering::Acquire) != 0;
    REGISTER[..end].iter().enumerate().filter(taken).map(|(number, _)| number as RawFd)
}

/// Closes what this process, a copy of the one that made them, has of the library's descriptors,
/// but for these. What owned them is never dropped here.
pub(crate) fn close_all_but(keep: &[RawFd]) {
    for number in registered().filter(|number| !keep.contains(number)) {
        REGISTER[number as usize].store(0, Ordering::Release);
        // Else the program has closed it, and what has its number now is no longer the library's.
        if descriptors::mark(number) > 0 {
            descriptors::close_number(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbit_linux::eventfd;

    #[test]
    fn a_number_that_names_another_file_is_not_its_own() {
        let (mine, other) = (std::fs::File::open("/proc/self/stat"), std::fs::File::open("/proc/self/maps"));
        let (own, other) = (Own::new(mine.expect("open").into()).expect("own"), other.expect("open"));
        let number = own.fd().expect("still its own").as_raw_fd();
        // SAFETY: the number is known to this test alone.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        let reported = own.get().expect_err("another file").to_string();
        assert!(reported.contains(&number.to_string()), "{reported}");
        drop(own);
        // SAFETY: closes what the number names, which is this test's.
        assert!(descriptors::is_open(number) && unsafe { libc::close(number) } == 0, "left open");
    }

    #[test]
    fn an_event_counter_of_the_program_is_no_one_elses() {
        let (own, theirs) = (Own::new(eventfd::create().expect("eventfd")).expect("own"), eventfd::create());
        let number = own.number().expect("still its own");
        let theirs = theirs.expect("eventfd");
        // SAFETY: as above. Both files have the same device and inode.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
        assert_eq!(own.number(), None);
        drop(own);
        // SAFETY: as above.
        assert!(descriptors::is_open(number) && unsafe { libc::close(number) } == 0, "left open");
    }

    #[test]
    fn a_number_given_to_a_newer_one_is_the_newer_ones() {
        let older = Own::new(eventfd::create().expect("eventfd")).expect("own");
        let number = older.number().expect("its own");
        // As the program would.
        descriptors::close_number(number);
        let file = eventfd::create().expect("eventfd");
        descriptors::put_at(file.as_fd(), number, false).expect("dup3");
        // SAFETY: the descriptor just made.
        let newer = Own::new(unsafe { std::os::fd::FromRawFd::from_raw_fd(number) }).expect("own");
        assert_eq!((older.number(), newer.number()), (None, Some(number)));
        drop(older);
        assert_eq!(newer.number(), Some(number));
    }

    #[test]
    fn numbers_are_high_as_far_as_the_limit_goes() {
        let own = Own::new(eventfd::create().expect("eventfd")).expect("own");
        let shown = Own::shown(eventfd::create().expect("eventfd")).expect("own");
        let (allowed, _) = rlimit::get(0, Resource::Files).expect("limit");
        assert!(own.number().expect("there") as u64 >= (allowed / 2).min(1000));
        assert!((100..1024).contains(&shown.number().expect("there")) || allowed < 256);
    }
}
