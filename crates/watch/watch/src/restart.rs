//! The restart of a program that hangs: its end, with all that it made, a pause, and its next
//! start.
//!
//! Promises: a program that was asked to end, by a signal before it hung, since then or in the
//! pause, is not started again. In a program that hangs while it ends the end is what was wanted,
//! and a supervisor that waits for it is not to wait for another one. No second program runs beside
//! a first that has not ended, in a call that no signal ends: that is reported, and signals are
//! handled meanwhile.

use super::begin::unmake;
use super::{Guard, action, program, readable};
use orbit_ahd::Event;
use orbit_family::{self as family, Family};
use orbit_linux::child::{self, Exit};
use orbit_linux::pidfd;
use orbit_linux::poll::poll;
use orbit_linux::rlimit::{self, Resource};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// First pause before a restart; it doubles with each that follows soon.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before a restart.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// A program that ran for so long is restarted at once again.
const FIRST_PAUSE_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// So long a killed program may take to exit before that is reported, and a signal that asks for
/// the end ends the guard.
const MAX_WAIT_FOR_END: Duration = Duration::from_secs(5);
/// So long the kernel may take to write a core.
const MAX_WAIT_FOR_CORE: Duration = Duration::from_secs(60);
/// Pause between two checks of a program that a tracer keeps.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

impl Guard {
    /// Kills the program with all that is watched of it, and all that it made where orphans are
    /// adopted, and starts it anew; an exit status if that fails, or if a signal has asked for its
    /// end, or does so meanwhile.
    pub(super) fn restart(&mut self, hung: i32) -> Option<ExitCode> {
        // Asked before: afterwards it is gone.
        let ending = action::asks_to_end(self.pid);
        let mut asked = self.signals.asked_to_end();
        let mut family = self.adopts.then(|| Family::of(self.pid, &self.others));
        let mut gone = BTreeSet::from_iter(self.detector.pids());
        // Before anything ends: a number may be another process' then.
        let held: Vec<_> = gone.iter().filter_map(|pid| pidfd::open(*pid).ok()).collect();
        if self.core {
            let said = self.core_of(hung);
            self.writer.did(said, hung);
        }
        for process in &held {
            // It may have ended meanwhile.
            let _ = pidfd::send_signal(process.as_fd(), libc::SIGKILL);
        }
        self.wait_for_its_end(&ending, &mut asked);
        let left = family.as_mut().map_or(0, |family| family.end(&self.others));
        if left != 0 {
            self.writer.did(format!("{left} processes that the program made have not ended yet, though killed"), hung);
        }
        if self.adopts {
            // The program is reaped, and its number nobody's; else it is not started again.
            family::reap(|_| false);
        }
        self.finish();
        gone.extend(self.detector.pids());
        self.detector.forget();
        for pid in gone {
            self.report(Event::Left { pid }, String::new());
        }
        if self.started.elapsed() > FIRST_PAUSE_AGAIN_AFTER {
            self.pause = FIRST_PAUSE;
        }
        if let Some(signal) = asked.or_else(|| self.asked_in_pause(&ending)) {
            self.writer.did(
                format!("killed the program, and did not start it again: signal {signal} asked for its end"),
                hung,
            );
            return Some(ExitCode::from(program::ended_by(signal)));
        }
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        let again = program::start(&self.program, &self.signals, self.limit, self.others.mark()).and_then(|child| {
            let pid = child.id() as i32;
            let mut child = Some(child);
            Ok((pid, pidfd::open(pid).inspect_err(|_| unmake(&mut child))?, child))
        });
        match again {
            Ok((pid, pidfd, child)) => {
                (self.pid, self.pidfd, self.child) = (pid, pidfd, child);
                self.signals.before_program();
            }
            Err(e) => {
                self.writer.did(format!("could not start the program again: {e}"), hung);
                return Some(ExitCode::from(program::not_started(&e)));
            }
        }
        self.started = Instant::now();
        self.detector.watch(self.pid);
        self.writer.did(format!("killed the program and started it again as process {}", self.pid), self.pid);
        None
    }

    /// Has the kernel write a core of a process, as `core_pattern` says, by a signal that ends it
    /// so; says what became of it. Waits for [`MAX_WAIT_FOR_CORE`] at most.
    fn core_of(&mut self, pid: i32) -> String {
        let without = |why: &str| format!("no core of process {pid}: {why}");
        if !action::ends(pid, libc::SIGABRT) {
            return without("it catches, ignores or blocks SIGABRT");
        }
        let Ok(process) = pidfd::open(pid) else { return without("it has exited") };
        match rlimit::get(pid, Resource::Core) {
            Ok((_, 0)) => return without("its limit of a core's size (ulimit -H -c) is 0"),
            Ok((_, hard)) if rlimit::set(pid, Resource::Core, hard, hard).is_ok() => {}
            _ => return without("its limit of a core's size cannot be set"),
        }
        if let Err(error) = pidfd::send_signal(process.as_fd(), libc::SIGABRT) {
            return without(&format!("SIGABRT cannot be sent: {error}"));
        }
        let until = Instant::now() + MAX_WAIT_FOR_CORE;
        while !pidfd::has_ended(process.as_fd()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return without(&format!("it has not ended {} s after SIGABRT", MAX_WAIT_FOR_CORE.as_secs()));
            }
            if poll(&mut [readable(process.as_fd())], Some(left)).is_err() {
                std::thread::sleep(CHECK_INTERVAL);
            }
        }
        let pattern = orbit_linux::procfs::text("/proc/sys/kernel/core_pattern").unwrap_or_default();
        let pattern = pattern.trim_end();
        // Of another process than the guard's child only its parent learns that.
        match child::has_dumped(pid) {
            Ok(true) => format!("ended process {pid} by SIGABRT: its core went to `{pattern}`"),
            Ok(false) => without(&format!("the kernel wrote none to `{pattern}`")),
            Err(_) => format!("ended process {pid} by SIGABRT for a core, which goes to `{pattern}` if it may"),
        }
    }

    /// Waits until the killed program has ended and is reaped; some seconds at most if a signal
    /// asked, or asks meanwhile, for its end.
    fn wait_for_its_end(&mut self, ending: &[i32], asked: &mut Option<i32>) {
        let until = Instant::now() + MAX_WAIT_FOR_END;
        let mut is_reported = false;
        while self.child.as_mut().is_some_and(|child| matches!(child.exited(), Ok(None))) {
            let came = self.signals.take(None);
            *asked = asked.or_else(|| came.into_iter().find(|signal| ending.contains(signal)));
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() && !std::mem::replace(&mut is_reported, true) {
                let pid = self.pid;
                let then = "it is not started again before";
                self.writer.did(format!("process {pid} has not ended yet, though killed: {then}"), pid);
            }
            if left.is_zero() && asked.is_some() {
                return;
            }
            let mut fds = self.signals.polled().to_vec();
            // One that is traced has ended, and is not its parent's before its tracer has let it
            // go.
            let traced = pidfd::has_ended(self.pidfd.as_fd());
            if !traced {
                fds.push(readable(self.pidfd.as_fd()));
            }
            let most = if traced { CHECK_INTERVAL } else { MAX_WAIT_FOR_END };
            let pause = if is_reported { most } else { most.min(left) };
            if poll(&mut fds, Some(pause)).is_err() {
                std::thread::sleep(CHECK_INTERVAL);
            }
        }
    }

    /// Waits for the pause before a restart; answers which of these signals came, if one did.
    /// Others are for a program that is gone.
    fn asked_in_pause(&mut self, ending: &[i32]) -> Option<i32> {
        let until = Instant::now() + self.pause;
        loop {
            if let Some(signal) = self.signals.take(None).into_iter().find(|signal| ending.contains(signal)) {
                return Some(signal);
            }
            let left = until.saturating_duration_since(Instant::now());
            // Where it cannot wait for signals it continues at once.
            if left.is_zero() || poll(&mut self.signals.polled(), Some(left)).is_err() {
                return None;
            }
        }
    }
}
