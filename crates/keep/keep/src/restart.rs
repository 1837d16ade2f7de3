//! The restart of a program that died, for `--restart`: whether, after which pause, and without
//! what it has left.
//!
//! Promises: a program that was asked to end, or has exited by itself, is not started again; what
//! it has made has ended before its next start, and so the port is free.

use crate::attach::FATAL;
use crate::program::End;
use crate::signals::Signals;
use orbit_family::{self as family, Family, Others};
use orbit_linux::poll::poll;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// First pause before a restart; it doubles with each that follows soon.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before a restart.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// A program that ran for so long is restarted after the first pause again.
const FIRST_PAUSE_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What a keeper that restarts its program knows of processes that are not the program's.
#[derive(Debug)]
pub(crate) struct Restarts {
    others: Others,
}

impl Restarts {
    /// Before the program is started first. From now on its orphans become this process' children.
    ///
    /// # Errors
    /// See [`family::adopt`].
    pub fn begin() -> io::Result<Restarts> {
        family::adopt()?;
        Ok(Restarts { others: Others::before_program() })
    }

    /// The limit of resident memory that the program is to be started with, if it is to be marked.
    pub fn mark(&self) -> Option<(u64, u64)> {
        self.others.mark()
    }

    /// Kills what the program has made, and reaps it; answers how many have not ended though.
    /// Waits some seconds at most. `program` has been reaped.
    pub fn end_what_is_left(&self, program: i32) -> usize {
        let left = Family::of(program, &self.others).end(&self.others);
        family::reap(|_| false);
        left
    }
}

/// Whether a program that has ended so is to be started again. `asked`: a signal has asked for its
/// end. `gave_up`: a crash was given up, so that a status other than 0 comes of it.
pub(crate) fn is_due(end: End, asked: Option<i32>, gave_up: bool) -> bool {
    let died = match end.signal {
        Some(signal) => FATAL.contains(&signal) || signal == libc::SIGKILL,
        None => gave_up && end.code != 0,
    };
    died && asked.is_none()
}

/// The pauses before restarts.
pub(crate) struct Pauses {
    next: Duration,
    started: Instant,
    /// Restarts so far.
    pub number: u64,
}

impl Pauses {
    /// The program is started now.
    pub fn new(now: Instant) -> Pauses {
        Pauses { next: FIRST_PAUSE, started: now, number: 0 }
    }

    /// The pause before the next start.
    pub fn next(&mut self, now: Instant) -> Duration {
        if now.saturating_duration_since(self.started) > FIRST_PAUSE_AGAIN_AFTER {
            self.next = FIRST_PAUSE;
        }
        let pause = self.next;
        self.next = (self.next * 2).min(MAX_PAUSE);
        self.started = now + pause;
        self.number += 1;
        pause
    }
}

/// Waits for the pause; `false` if a signal has asked for the end meanwhile.
pub(crate) fn wait(pause: Duration, signals: &Signals) -> bool {
    let until = Instant::now() + pause;
    loop {
        // Others are for a program that is gone.
        signals.take();
        let left = until.saturating_duration_since(Instant::now());
        if signals.asked_to_end().is_some() || left.is_zero() {
            return signals.asked_to_end().is_none();
        }
        let mut polled = [libc::pollfd { fd: signals.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        if poll(&mut polled, Some(left)).is_err() {
            std::thread::sleep(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_death_that_nobody_asked_for_is_followed_by_a_start() {
        let of = |code: u8, signal| End { code, signal };
        for signal in [libc::SIGSEGV, libc::SIGABRT, libc::SIGBUS, libc::SIGKILL] {
            assert!(is_due(of(128, Some(signal)), None, false), "{signal}");
            assert!(!is_due(of(128, Some(signal)), Some(libc::SIGTERM), true), "{signal}");
        }
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
            assert!(!is_due(of(128, Some(signal)), None, false), "{signal}");
        }
        assert!(!is_due(of(0, None), None, true) && !is_due(of(1, None), None, false));
        // Its own handler has run after the keeper had given up.
        assert!(is_due(of(1, None), None, true));
    }

    #[test]
    fn pauses_double_and_begin_anew_after_a_long_run() {
        let mut now = Instant::now();
        let mut pauses = Pauses::new(now);
        let mut of = |ran: Duration| {
            now += ran;
            let pause = pauses.next(now);
            now += pause;
            pause.as_millis()
        };
        let soon = Duration::from_millis(5);
        assert_eq!([of(soon), of(soon), of(soon)], [100, 200, 400]);
        for _ in 0..9 {
            of(soon);
        }
        assert_eq!(of(soon), MAX_PAUSE.as_millis());
        assert_eq!(of(FIRST_PAUSE_AGAIN_AFTER), MAX_PAUSE.as_millis(), "not longer than that");
        assert_eq!(of(FIRST_PAUSE_AGAIN_AFTER + soon), 100);
        assert_eq!(pauses.number, 15);
    }
}
