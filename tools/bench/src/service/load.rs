//! The programs of the experiment: three that compute, one that disturbs, and the service manager
//! as a plain process. Each is a fork of the bench while that has one thread, and dies with it.

use orbit_console::out::Failure;
use orbit_linux::process::RawChild;
use orbit_linux::{clock, pidfd, process, sched};
use orbit_services::{Control, Invitation};
use std::hint::black_box;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::stats::Shuffle;

/// Children that are killed when this is dropped: all of them before the first is waited for, since
/// one of a low real-time priority does not get to its end while another of a higher one computes.
#[derive(Default)]
pub struct Programs(Vec<RawChild>);

impl Programs {
    /// Their processes, in the order of starting.
    pub fn pids(&self) -> Vec<i32> {
        self.0.iter().map(|child| child.pid).collect()
    }

    /// Runs `body` in a child on one CPU, at a priority as in [`set_priority`]; it joins the region
    /// first if it is invited. Waits until the child is at its body.
    pub fn start(
        &mut self,
        (cpu, priority): (usize, i32),
        invitation: Option<Invitation>,
        body: impl FnOnce(),
    ) -> Result<(), Failure> {
        let ready = orbit_linux::eventfd::create()?;
        // SAFETY: this process has one thread, so the child finds every lock free; it ends in this
        // function.
        if let Some(child) = unsafe { process::raw_fork(0) }? {
            self.0.push(child);
            let mut polled = [libc::pollfd { fd: ready.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            return match orbit_linux::poll::poll(&mut polled, Some(Duration::from_secs(60)))? {
                1 => Ok(()),
                _ => Err(Failure::text("a program of the experiment could not be started within a minute")),
            };
        }
        set_priority(0, priority);
        process::close_all_but(&[0, 1, 2, ready.as_raw_fd()]);
        let signal = ready.as_fd();
        let is_ready = process::set_parent_death_signal(libc::SIGKILL)
            .and_then(|()| sched::set_affinity(0, &[cpu]))
            .is_ok_and(|()| invitation.is_none_or(|invitation| invitation.accept().is_ok()));
        if is_ready {
            orbit_linux::eventfd::signal(signal);
            body();
        }
        process::end(i32::from(!is_ready));
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let handles = || self.0.iter().filter_map(|child| child.pidfd.as_ref());
        for fd in handles() {
            let _ = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
        }
        for fd in handles() {
            let _ = pidfd::wait(fd.as_fd(), false);
        }
    }
}

/// Computes without end.
pub fn compute() {
    let mut x = 1u32;
    loop {
        for _ in 0..100_000 {
            x = black_box(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        }
    }
}

/// Computes for a while.
fn compute_for(time: Duration) {
    let until = now() + time.as_nanos() as u64;
    let mut x = 1u32;
    while now() < until {
        for _ in 0..5_000 {
            x = black_box(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        }
    }
}

/// The disturbance, a Markov-modulated Poisson process: quiet for exponentially distributed times
/// of this mean, then busy for a geometrically distributed number of `burst / 15`. Each burst
/// begins at FIFO 96.
pub fn disturb(seed: u64, quiet: Duration, burst: Duration) {
    const UNITS: u32 = 15;
    let mut random = Shuffle::new(seed);
    // A number in (0, 1].
    let mut next = move || (random.below(1 << 30) + 1) as f64 / f64::from(1 << 30);
    loop {
        std::thread::sleep(quiet.mul_f64(-next().ln()));
        let mut units = 1;
        while next() > 1.0 / f64::from(UNITS) {
            units += 1;
        }
        set_priority(0, 96);
        compute_for(burst / UNITS * units);
    }
}

/// The service manager as a plain process: a timer, `/proc`, the same controller, system calls.
/// `threads` are those it keeps shares for, in the order of their priorities, and last the
/// disturbance.
pub fn manage(tick: Duration, shares: &[(u64, u64)], threads: &[i32]) {
    let mut control: Vec<Control> = shares.iter().map(|&(target, period)| Control::new(target, period)).collect();
    let mut due = now();
    loop {
        due = (due + tick.as_nanos() as u64).max(now());
        sleep_until(due);
        for thread in &threads[shares.len()..] {
            set_priority(*thread, 0);
        }
        for (nth, (control, thread)) in control.iter_mut().zip(threads).enumerate() {
            let Ok(used) = sched::schedstat(*thread, *thread) else { continue };
            let is_owed = control.step(now(), used.run_ns);
            set_priority(*thread, if is_owed { 70 + nth as i32 } else { 0 });
        }
    }
}

/// FIFO with this priority; 0: an ordinary thread. One that is gone is left alone.
pub fn set_priority(thread: i32, priority: i32) {
    orbit_services::sys::set_priority(thread, priority);
}

/// Monotonic time, nanoseconds.
pub fn now() -> u64 {
    orbit_services::sys::now()
}

/// Sleeps until this monotonic time.
pub fn sleep_until(at_ns: u64) {
    while now() < at_ns {
        clock::sleep_until(at_ns);
    }
}
