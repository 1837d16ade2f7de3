//! Attributes that can be read and applied by system calls alone, so that an upcall in a member can do both.

use crate::abi::Grant;
use crate::guard::Guard;
use crate::sys;

/// Class `cpu:priority`: real-time priority of a thread; 0 is `SCHED_OTHER`, else `SCHED_FIFO`.
pub const CPU_PRIORITY: u32 = 1;
/// Class `cpu:used`: CPU time of a process so far, nanoseconds. Cannot be set.
pub const CPU_USED: u32 = 2;
/// Class `cpu:nice`: niceness of a thread.
pub const CPU_NICE: u32 = 3;

/// `-EINVAL`.
pub const INVALID: i64 = -22;

/// The guard that a grant stands for.
pub fn guard(grant: &Grant) -> Guard {
    Guard { min: grant.min, max: grant.max, clamp: grant.clamp != 0 }
}

/// Reads an attribute of a target.
///
/// # Errors
/// `-errno`: `-ESRCH` when the target is gone, `-EINVAL` for a class that is none.
pub fn read(class: u32, target: i32) -> Result<i64, i64> {
    match class {
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
        _ => Err(INVALID),
    }
}

/// Applies an attribute to a target, with the rights of the calling thread. The value is one that a guard passed.
///
/// # Errors
/// `-errno`: `-EPERM` where this thread may not, `-ESRCH`, `-EINVAL` for a class that is none or cannot be set.
pub fn apply(class: u32, target: i32, value: i64) -> Result<(), i64> {
    let answer = match class {
        CPU_PRIORITY => sys::set_priority(target, value as i32),
        CPU_NICE => sys::set_nice(target, value as i32),
        _ => return Err(INVALID),
    };
    if answer < 0 { Err(answer as i64) } else { Ok(()) }
}
