//! A hang that another process has found (`orbit watch --on-hang recover`): the program is put back
//! as after a crash. Where that is not possible it is left as it is.

use super::Keeper;
use super::recovery::PUT_BACK_LIMIT;
use crate::desk::Waiting;
use crate::error::Error;
use crate::place;
use crate::report::{Event, Reporter};
use crate::shared::CrashReport;
use orbit_linux::pidfd;
use std::time::{Duration, Instant};

/// A replay that has not ended after this time hangs again: the log holds some 10 ms of calls.
const REPLAY_LIMIT: Duration = Duration::from_secs(2);

/// A hang from which the program was put back, and that may come again in the replay.
pub(super) struct Hung {
    tid: i32,
    until: Instant,
}

impl Keeper {
    /// Deals with an order.
    pub(super) fn ordered(&mut self, waiting: Waiting) {
        let (tid, why) = (waiting.order.tid, waiting.order.why.clone());
        let done = self.hung(tid, &why);
        waiting.answer(done.is_ok(), done.unwrap_or_else(|why| why));
    }

    /// Takes the next step of the ladder if the replay after a hang hangs as well.
    pub(super) fn hung_again(&mut self) {
        let Some(Hung { tid, until }) = self.hung else { return };
        if self.replay.is_none() {
            self.hung = None;
        } else if Instant::now() > until {
            self.hung = None;
            // It has been said where it fails.
            let _ = self.hung(tid, "the replay hangs as well");
        }
    }

    /// Deals with a program whose waits for input fail again and again, since the last time;
    /// returns whether there was something to deal with.
    pub(super) fn waits_failed(&mut self) -> bool {
        let (count, errno) = self.shared.failed_waits();
        if std::mem::replace(&mut self.failed_waits, count) == count || !self.shared.has_log() {
            return false;
        }
        let error = std::io::Error::from_raw_os_error(errno);
        let why = format!("it waits for input again and again, which fails at once: {error}");
        // It has been said where it fails.
        let _ = self.hung(self.shared.serving(), &why);
        true
    }

    /// Puts the program back; returns what was done, or why it is left as it is.
    fn hung(&mut self, tid: i32, why: &str) -> Result<String, String> {
        let since = Instant::now();
        let done = self.try_hung(tid, why, since);
        self.publish();
        if let Err(why) = &done {
            self.reporter.warn(format!("it hangs and is left as it is: {why}"));
        }
        done
    }

    fn try_hung(&mut self, tid: i32, why: &str, since: Instant) -> Result<String, String> {
        let hang = self.at_hang(tid).map_err(|e| e.to_string())?;
        self.figures.hangs += 1;
        let pid = self.kept.process().pid();
        self.reporter.report(&Event::Hang {
            tid: hang.tid,
            thread: place::thread_name(pid, hang.tid),
            place: place::of(self.kept.process(), hang.ip),
            why: why.to_owned(),
            number: self.figures.hangs,
        });
        self.note_shown();
        let step = self.judge(&hang).map_err(|error| error.to_string())?;
        self.began(&hang, since);
        match self.attempt_at_hang(&hang, step) {
            Ok(Some(attempt)) => {
                self.hung = self.replay.is_some().then(|| Hung { tid, until: since + REPLAY_LIMIT });
                Ok(attempt.text())
            }
            Ok(None) => Err(format!("its serving thread has not come to a safe point within {PUT_BACK_LIMIT:?}")),
            Err(error) => {
                // Memory may be half rolled back. Its handler has the ladder's next step taken, or
                // it dies.
                let _ = pidfd::send_signal(self.kept.process().handle(), libc::SIGABRT);
                Err(error.to_string())
            }
        }
    }

    /// Where the thread is that hangs, as a crash there would have been reported; the main thread
    /// if there is none of this number.
    fn at_hang(&self, tid: i32) -> Result<CrashReport, Error> {
        if self.figures.checkpoints == 0 {
            return Err(Error::Unkept("there is no checkpoint yet".into()));
        }
        self.kept.process().while_stopped(|stopped| {
            let tid = if stopped.tids().contains(&tid) { tid } else { stopped.pid() };
            let r = stopped.thread(tid)?.general()?;
            Ok(CrashReport {
                signal: CrashReport::HANG,
                code: 0,
                tid,
                address: 0,
                ip: r.rip,
                sp: r.rsp,
                bp: r.rbp,
                // All that it has logged is part of its history.
                head: u64::MAX,
                regs: [
                    r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
                    r.r14, r.r15, r.rip,
                ],
            })
        })
    }
}

/// Says once that orders do not reach this process.
pub(super) fn unreachable(reporter: &mut Reporter, error: &std::io::Error) {
    reporter.warn(format!("`orbit watch --on-hang recover` does not reach it: {error}"));
}
