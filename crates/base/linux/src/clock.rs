//! Clocks of the kernel, in nanoseconds.
//!
//! Times fit a `u64` for 584 years. No function fails, blocks, or makes a system call where the
//! vdso has the clock. Async-signal-safe.

use std::time::Duration;

/// Returns the time since some moment before the machine's start, without the time it was suspended
/// (`CLOCK_MONOTONIC`).
#[inline]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the CPU time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time of the calling process, all its threads together.
pub fn process_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the CPU time of another process; `None` if there is no such process.
pub fn cpu_ns_of(pid: i32) -> Option<u64> {
    let mut clock = 0;
    // SAFETY: one clock id is written to a live local.
    let found = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } == 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one timespec is written to a live local.
    (found && unsafe { libc::clock_gettime(clock, &raw mut time) } == 0).then(|| nanoseconds(&time))
}

/// Returns the time of the clock with this number (`CLOCK_*`); `None` where the kernel has none.
pub fn ns_of(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one timespec is written to a live local.
    (unsafe { libc::clock_gettime(clock, &raw mut time) } == 0).then(|| nanoseconds(&time))
}

/// Sleeps until the monotonic clock shows `until_ns`; returns earlier if a signal handler ran.
pub fn sleep_until(until_ns: u64) {
    let until = crate::futex::timespec(Duration::from_nanos(until_ns));
    // SAFETY: the call reads one timespec; an absolute sleep reports no remainder.
    unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const until, std::ptr::null_mut())
    };
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one timespec is written to a live local; these clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    nanoseconds(&time)
}

#[inline]
fn nanoseconds(time: &libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_advance_with_work_and_with_sleep() {
        let (wall, cpu) = (monotonic_ns(), thread_cpu_ns());
        while thread_cpu_ns() - cpu < 1_000_000 {
            std::hint::spin_loop();
        }
        assert!(monotonic_ns() - wall >= 1_000_000);
        let own = thread_cpu_ns();
        assert!(process_cpu_ns() >= own);
        let until = monotonic_ns() + 2_000_000;
        sleep_until(until);
        assert!(monotonic_ns() >= until);
        assert!(cpu_ns_of(std::process::id() as i32).is_some_and(|ns| ns >= cpu));
        // One more than the kernel ever gives.
        assert_eq!(cpu_ns_of((1 << 22) + 1), None);
    }
}
