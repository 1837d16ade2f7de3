//! What a template, and so an orbit, has of main's descriptors: their numbers, occupied by
//! something on which every use fails with `EBADF`.
//!
//! A task is main's code and may use a number that main knows. If the number were free, the next
//! file that the orbit opens would be given it, and the task would write into that. So are numbers
//! that main has not opened yet, up to [`RESERVED`]: a file that main opens after the set-up is
//! nothing else in an orbit either.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use orbit_linux::descriptors;
use orbit_linux::rlimit::{self, Resource};

use crate::own;

/// Numbers below this are occupied in orbits whether main has them or not, a quarter of what a
/// process may have at most.
const RESERVED: u64 = 256;

/// Called in a template, before it opens anything: occupies all numbers of main's, and those
/// reserved, and closes what it has of the library's own, but for `keep`. The standard streams
/// stay, where main has them.
///
/// # Errors
/// Without anything to occupy numbers with there is no template: `EMFILE`, `ENFILE`, and those of
/// opening `/`.
pub(crate) fn occupy(keep: &[RawFd]) -> io::Result<()> {
    own::close_all_but(keep);
    let open = descriptors::open_numbers();
    let reserved = reserve();
    let is_mains = |number: RawFd| number > 2 && !keep.contains(&number);
    let nothing = match descriptors::placeholder() {
        // Main has as many as it may have: one of them makes room.
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
            if let Some(number) = open.iter().find(|number| is_mains(**number)) {
                descriptors::close_number(*number);
            }
            descriptors::placeholder()?
        }
        made => made?,
    };
    let at = nothing.as_raw_fd();
    for number in open.iter().copied().filter(|number| is_mains(*number) && *number >= reserved) {
        occupy_one(&nothing, number);
    }
    for number in (0..reserved).filter(|number| !keep.contains(number)) {
        if number > 2 || open.binary_search(&number).is_err() {
            occupy_one(&nothing, number);
        }
    }
    // Kept as one of them, or closed where it is none.
    if at < reserved || open.binary_search(&at).is_ok() {
        std::mem::forget(nothing);
    }
    Ok(())
}

fn occupy_one(nothing: &OwnedFd, number: RawFd) {
    if number != nothing.as_raw_fd() && descriptors::put_at(nothing.as_fd(), number, false).is_err() {
        // Beyond the limit of descriptors, where no new file comes to lie.
        descriptors::close_number(number);
    }
}

/// How many numbers are reserved. Tasks may open as many files as main may, where the hard limit
/// allows that.
fn reserve() -> RawFd {
    let Ok((soft, hard)) = rlimit::get(0, Resource::Files) else { return 0 };
    let raised = soft.saturating_add(RESERVED).min(hard);
    let _ = rlimit::set(0, Resource::Files, raised, hard);
    (soft.max(raised) / 4).min(RESERVED) as RawFd
}
