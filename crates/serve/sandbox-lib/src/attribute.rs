//! Attributes that can be read and applied by system calls alone, so that an upcall in a member can
//! do both.

use crate::abi::{self, Grant, Run};
use crate::guard::Guard;
use crate::published::{self, Table};
use crate::{group, sys};

/// Class `cpu:priority`: real-time priority of a thread; 0 is `SCHED_OTHER`, else `SCHED_FIFO`.
pub const CPU_PRIORITY: u32 = 1;
/// Class `cpu:used`: CPU time of a process so far, nanoseconds. Cannot be set.
pub const CPU_USED: u32 = 2;
/// Class `cpu:nice`: niceness of a thread.
pub const CPU_NICE: u32 = 3;
/// Class `cpu:weight`: weight of a process among others; 100 is usual. See [`crate::group`].
pub const CPU_WEIGHT: u32 = 4;
/// Class `cpu:max`: the most CPU time of a process, percent of one CPU; 0 is no limit. See
/// [`crate::group`].
pub const CPU_MAX: u32 = 5;

/// Class `memory:used`: resident memory of a process, bytes. Cannot be set.
pub const MEMORY_USED: u32 = 10;
/// Class `memory:cache`: what a program's cache may use, bytes. The program publishes it.
pub const MEMORY_CACHE: u32 = 11;
/// Class `descriptors:open`: open descriptors of a process. Cannot be set.
pub const DESCRIPTORS_OPEN: u32 = 20;
/// Class `descriptors:limit`: the largest number of them. Cannot be set.
pub const DESCRIPTORS_LIMIT: u32 = 21;
/// Class `descriptors:idle`: how long a connection may be idle before the program closes it,
/// milliseconds. The program publishes it.
pub const DESCRIPTORS_IDLE: u32 = 22;

/// `-ENOENT`: the program does not publish this attribute.
pub const NOT_PUBLISHED: i64 = -2;
/// `-EINVAL`.
pub const INVALID: i64 = -22;

/// The guard that a grant stands for.
pub fn guard(grant: &Grant) -> Guard {
    Guard { min: grant.min, max: grant.max, clamp: grant.clamp != 0 }
}

/// Whether programs publish attributes of this class.
pub fn is_published(class: u32) -> bool {
    matches!(class, MEMORY_CACHE | DESCRIPTORS_IDLE)
}

/// For so long a target that was checked is the one that its handle was granted for, nanoseconds:
/// no machine makes as many processes meanwhile as it has numbers.
pub const CHECK_HOLDS_NS: u64 = 1_000_000;

/// Whether a check at `then` still holds at `now`, both of the CPU's counter. `tick_ns`: as
/// [`crate::abi::Directory::tick_ns`]. Not for a thread that moved to a CPU whose counter is
/// behind.
pub fn still_holds(then: u64, now: u64, tick_ns: u64) -> bool {
    tick_ns != 0 && now.wrapping_sub(then).saturating_mul(tick_ns) >> 16 < CHECK_HOLDS_NS
}

/// Whether a grant's target is the one that it was granted for, and not another that was given its
/// number since: 0, else `-ESRCH`. `run` remembers the last one: to read a start time costs more
/// than what most handlers do.
pub(crate) fn check(grant: &Grant, run: &mut Run) -> Result<(), i64> {
    if grant.began == 0 {
        return Ok(());
    }
    let now = sys::ticks();
    if (run.checked, run.checked_began) == (grant.target, grant.began)
        && still_holds(run.checked_at, now, abi::directory().tick_ns)
    {
        return Ok(());
    }
    if sys::began(grant.target)? != grant.began {
        return Err(-3);
    }
    (run.checked, run.checked_began, run.checked_at) = (grant.target, grant.began, now);
    Ok(())
}

/// Reads an attribute of a target. `table`: what programs publish.
///
/// # Errors
/// `-errno`: `-ESRCH` when the target is gone, `-ENOENT` when it does not publish this, `-EINVAL`
/// for a class that is none.
pub fn read(class: u32, target: i32, table: &Table) -> Result<i64, i64> {
    let short = |number: u64| number.min(i64::MAX as u64) as i64;
    match class {
        MEMORY_USED => sys::resident(target).map(short),
        DESCRIPTORS_OPEN => sys::descriptors(target).map(short),
        DESCRIPTORS_LIMIT => sys::descriptor_limit(target).map(short),
        class if is_published(class) => {
            let place = published::find(table, class, target).ok_or(NOT_PUBLISHED)?;
            Ok(place.present.load(core::sync::atomic::Ordering::Acquire))
        }
        CPU_PRIORITY => match sys::priority(target) {
            error if error < 0 => Err(error as i64),
            priority => Ok(priority as i64),
        },
        CPU_USED => match sys::clock(sys::cpu_clock_of(target)) {
            // A process that has run for no nanosecond at all is one that is not there.
            0 => Err(-3),
            used => Ok(used as i64),
        },
        CPU_NICE => sys::nice(target).map(i64::from).map_err(|error| error as i64),
        CPU_WEIGHT => group::weight(target),
        CPU_MAX => group::max(target),
        _ => Err(INVALID),
    }
}

/// Applies an attribute to a target, with the rights of the calling thread. The value is one that a
/// guard passed.
///
/// # Errors
/// `-errno`: `-EPERM` where this thread may not, `-ESRCH`, `-ENOENT` when the target does not
/// publish this, `-EINVAL` for a class that is none or cannot be set.
pub fn apply(class: u32, target: i32, value: i64, table: &Table) -> Result<(), i64> {
    let answer = match class {
        class if is_published(class) => {
            published::find(table, class, target).ok_or(NOT_PUBLISHED)?.ask(value);
            return Ok(());
        }
        CPU_WEIGHT => return group::set_weight(target, value),
        CPU_MAX => return group::set_max(target, value),
        CPU_PRIORITY => sys::set_priority(target, value as i32),
        CPU_NICE => sys::set_nice(target, value as i32),
        _ => return Err(INVALID),
    };
    if answer < 0 { Err(answer as i64) } else { Ok(()) }
}
