//! A recovery: the ladder's next step, and the proof that it went well.
//!
//! A crash is judged, the program is put back, and its log is replayed. A replay touches nothing
//! outside: at its end the program waits, and continues only if the replay is *proven*: each call
//! was the one in the log, and gave out the same bytes. Only then is a recovery reported. A replay
//! that is not proven takes the ladder's next step; where there is none the program dies of its own
//! signal.

use super::{Keeper, rung_index};
use crate::arguments::Exactness;
use crate::error::Error;
use crate::ladder::{Facts, Rung, Step};
use crate::place;
use crate::report::{Event, ms};
use crate::restore::Restored;
use crate::shared::{Counts, CrashReport};
use crate::space::unrecordable;
use orbit_linux::{pidfd, poll, socket, socket_info};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// How long the serving thread may take to a safe point after another thread has crashed.
pub(super) const PUT_BACK_LIMIT: Duration = Duration::from_secs(2);
/// How long a program may stand still for a recovery, all its attempts together: from then on its
/// clients are better served by a restart.
const RECOVERY_LIMIT: Duration = Duration::from_secs(5);
/// A replay that has not ended after this time, counted from the crash, does not end: the program
/// dies of its signal.
const REPLAY_LIMIT: Duration = Duration::from_secs(10);
/// How long at least the environment stays changed, after the program has come past its crash.
const CHANGED_AFTER: Duration = Duration::from_secs(1);

/// What a step of the ladder has done.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    step: Step,
    restored: Restored,
    /// How long the program stood still for it.
    stopped: Duration,
    /// Of the checkpoint.
    age: Duration,
    lost: Vec<String>,
}

impl Attempt {
    /// In words.
    pub fn text(&self) -> String {
        format!("its keeper has put it back to a checkpoint {:.1} s old", self.age.as_secs_f64())
    }
}

/// An attempt that is being replayed.
pub(super) struct Replay {
    attempt: Attempt,
    before: Counts,
}

impl Keeper {
    /// Deals with a crash, or with what a replay has come to.
    pub(super) fn recover(&mut self, crash: &CrashReport) {
        let since = Instant::now();
        if crash.signal == 0 {
            // Beside what it reports: a replay is always that of a crash.
            let crash =
                self.crash.map_or(*crash, |(first, _)| CrashReport { head: crash.head, tid: crash.tid, ..first });
            match self.shared.has_replay_ended() {
                true => self.replay_ended(&crash),
                false => self.replay_left(&crash),
            }
            self.publish();
            return;
        }
        self.figures.crashes += 1;
        self.kept.has_crashed(crash);
        if let Some(delay) = self.ladder.delay(since) {
            std::thread::sleep(delay);
        }
        let pid = self.kept.process().pid();
        let event = Event::Crash {
            tid: crash.tid,
            thread: place::thread_name(pid, crash.tid),
            signal: place::signal_name(crash.signal),
            address: crash.sender().is_none().then(|| format!("{:#x}", crash.address)),
            sender: crash.sender(),
            ip: format!("{:#x}", crash.ip),
            place: place::of(self.kept.process(), crash.ip),
            number: self.figures.crashes,
        };
        let number = self.figures.crashes;
        self.began(crash, since);
        let stack = self.stacks.as_mut().map(|stacks| stacks.copy(number, crash));
        let done = self.attempt(crash);
        self.reporter.report(&event);
        self.finish(done);
        if let (Some(stacks), Some(stack)) = (&mut self.stacks, stack) {
            stacks.report(stack);
        }
        self.say_limits();
        self.publish();
    }

    /// A crash or a hang: the first one counts until the program is recovered from it.
    pub(super) fn began(&mut self, crash: &CrashReport, since: Instant) {
        self.note_shown();
        let (first, _) = *self.crash.get_or_insert((*crash, since));
        self.shared.set_signal(first.signal);
    }

    /// Notes what the replay has shown that is under way and has not left its log.
    pub(super) fn note_shown(&mut self) {
        let Some((from, to)) = self.shared.replayed() else { return };
        let (first, last) = self.shown;
        self.shown = if from <= last { (from.min(first), to.max(last)) } else { (from, to) };
    }

    /// Takes a step of the ladder. If a thread has crashed that does not serve, the serving one is
    /// brought to a safe point before.
    fn put_back(&mut self, crash: &CrashReport, step: Step) -> Result<(Restored, Duration), Error> {
        let done = self.try_put_back(crash, step)?;
        done.ok_or_else(|| Error::Unkept("the serving thread has not come to a safe point".into()))
    }

    /// The same; `None`, and nothing was done, if the serving thread has not come there in time.
    fn try_put_back(&mut self, crash: &CrashReport, step: Step) -> Result<Option<(Restored, Duration)>, Error> {
        let end = Instant::now() + PUT_BACK_LIMIT;
        loop {
            if let Some(done) = self.kept.recover(&self.shared, crash, step)? {
                return Ok(Some(done));
            }
            if Instant::now() > end {
                self.shared.release();
                return Ok(None);
            }
            self.shared.ask();
            self.shared.wait_bell(self.shared.bell(), Duration::from_millis(1));
        }
    }

    /// A replay has left the log's order: the next step of the ladder.
    fn replay_left(&mut self, crash: &CrashReport) {
        let [asked, logged] = self.shared.divergence();
        self.reporter.report(&Event::Diverged { asked, logged });
        self.next(crash);
    }

    /// A replay has come to its end: it is proven, or the next step of the ladder is taken.
    fn replay_ended(&mut self, crash: &CrashReport) {
        let now = self.shared.replay_counts();
        self.note_shown();
        let Some(Replay { attempt, before }) = self.replay.take() else {
            self.shared.accept();
            return;
        };
        let replies = now.mismatched.saturating_sub(before.mismatched);
        let lines = now.other_lines.saturating_sub(before.other_lines);
        // In request mode a connection that got other bytes is ended; other output is counted.
        let may_differ = self.shared.has_moments() && attempt.step.rung() != Rung::Environment;
        if (replies, lines) != (0, 0) && !may_differ {
            self.reporter.report(&Event::Differed { replies, lines, fd: self.shared.differing() });
            self.next(crash);
            return;
        }
        if matches!(attempt.step.rung(), Rung::Drop | Rung::Environment) {
            self.ladder.replayed(Instant::now());
        }
        self.shared.accept();
        let reset =
            (replies > 0).then(|| format!("{replies} replies differ from what was sent: their connections end"));
        let mut lost = attempt.lost.clone();
        lost.extend((lines > 0).then(|| format!("{lines} lines of other output differ from what was written")));
        self.recovered(&attempt, lost, reset.into_iter().collect(), now.calls.saturating_sub(before.calls));
    }

    /// Gives the program up if its replay computes without end. A signal that it blocks cannot end
    /// it: then it is killed.
    pub(super) fn limit_replay(&mut self) {
        let Some((first, since)) = self.crash else { return };
        if self.replay.is_none() || since.elapsed() < REPLAY_LIMIT {
            return;
        }
        self.finish(Err(Error::Unkept(format!("its replay has not ended within {REPLAY_LIMIT:?}"))));
        let signal = if first.signal == CrashReport::HANG { libc::SIGABRT } else { first.signal };
        // It may have exited by itself.
        let _ = pidfd::send_signal(self.kept.process().handle(), signal);
        let handle = self.kept.process().handle().as_raw_fd();
        let mut exit = [libc::pollfd { fd: handle, events: libc::POLLIN, revents: 0 }];
        if poll::poll(&mut exit, Some(PUT_BACK_LIMIT)).is_ok_and(|count| count == 0) {
            let _ = pidfd::send_signal(self.kept.process().handle(), libc::SIGKILL);
        }
    }

    /// The ladder's next step, after a replay that is not proven.
    fn next(&mut self, crash: &CrashReport) {
        self.replay = None;
        if self.changed_until.is_some() {
            self.ladder.environment_was_in_vain();
        }
        let done = self.attempt(crash);
        self.finish(done);
    }

    /// What has come of an attempt: it is replayed now, or done, or the program is given up.
    pub(super) fn finish(&mut self, done: Result<Attempt, Error>) {
        match done {
            Ok(attempt) => self.attempted(attempt),
            Err(error) => {
                self.figures.by_rung[rung_index(Rung::GiveUp)] += 1;
                self.given_up = self.crash.take().map(|(first, _)| first.signal);
                self.replay = None;
                self.reporter.report(&Event::GaveUp { why: error.to_string() });
                self.shared.give_up();
            }
        }
    }

    /// The program was put back.
    fn attempted(&mut self, attempt: Attempt) {
        let (step, age) = (attempt.step, attempt.age);
        self.figures.by_rung[rung_index(step.rung())] += 1;
        // Past where it crashed, and as long again.
        let past = Instant::now() + 2 * age + CHANGED_AFTER;
        self.changed_until = matches!(step, Step::Environment(_)).then_some(past);
        if !self.shared.has_log() {
            self.ladder.done_again(step, past);
            let mut lost = attempt.lost.clone();
            let Restored { connections_reset: reset, appended, signals_handled, .. } = attempt.restored;
            lost.extend((appended > 0).then(|| {
                format!("{appended} outputs to files open for appending and to stderr, whoever has read them")
            }));
            lost.extend((signals_handled > 0).then(|| format!("what {signals_handled} signals had done")));
            let reset = (reset > 0).then(|| format!("{reset} connections that had moved since"));
            self.recovered(&attempt, lost, reset.into_iter().collect(), 0);
            return;
        }
        self.reporter.report(&Event::Attempt {
            rung: step.rung(),
            checkpoint_age_ms: ms(age),
            stopped_ms: ms(attempt.stopped),
        });
    }

    /// The program continues.
    fn recovered(&mut self, attempt: &Attempt, lost: Vec<String>, reset: Vec<String>, calls: u64) {
        let rung = attempt.step.rung();
        let since = self.crash.take().map_or_else(Instant::now, |(_, since)| since);
        self.reporter.report(&Event::Recovered {
            rung,
            exact: lost.is_empty() && reset.is_empty(),
            lost,
            reset,
            calls,
            checkpoint_age_ms: ms(attempt.age),
            ms: ms(since.elapsed()),
            stopped_ms: ms(attempt.stopped),
            restored: attempt.restored.clone(),
        });
    }

    /// Judges and acts.
    fn attempt(&mut self, crash: &CrashReport) -> Result<Attempt, Error> {
        if self.crash.is_some_and(|(_, since)| since.elapsed() > RECOVERY_LIMIT) {
            return Err(Error::Unkept(format!("it has not come back within {RECOVERY_LIMIT:?}")));
        }
        let step = self.judge(crash)?;
        let (lost, age, before) = (self.lost(step), self.kept.age(step), self.shared.replay_counts());
        let (restored, stopped) = self.put_back(crash, step)?;
        let attempt = Attempt { step, restored, stopped, age, lost };
        self.replay = self.shared.has_log().then(|| Replay { attempt: attempt.clone(), before });
        Ok(attempt)
    }

    /// The same for a hang; `None`: the program has not come to a safe point, and nothing was done.
    pub(super) fn attempt_at_hang(&mut self, hang: &CrashReport, step: Step) -> Result<Option<Attempt>, Error> {
        let (lost, age, before) = (self.lost(step), self.kept.age(step), self.shared.replay_counts());
        let Some((restored, stopped)) = self.try_put_back(hang, step)? else { return Ok(None) };
        let attempt = Attempt { step, restored, stopped, age, lost };
        self.replay = self.shared.has_log().then(|| Replay { attempt: attempt.clone(), before });
        self.attempted(attempt.clone());
        Ok(Some(attempt))
    }

    /// What to do. An error: it is given up.
    pub(super) fn judge(&mut self, crash: &CrashReport) -> Result<Step, Error> {
        let mut last_input = None;
        if self.shared.has_log() {
            if !self.shared.is_logging() {
                let why = if self.figures.checkpoints == 0 {
                    "there is no checkpoint yet"
                } else {
                    "the log was full when it crashed: raise --log-size or lower --every"
                };
                return Err(Error::Unkept(why.into()));
            }
            last_input = self.shared.cut_at_crash(crash)?.last_input;
        }
        let is_late = self.crash.is_some_and(|(_, since)| since.elapsed() > RECOVERY_LIMIT / 2);
        let facts = self.kept.facts(&self.shared, crash, last_input);
        let is_shown = facts.is_shown || last_input.is_some_and(|input| self.shown.0 <= input && input < self.shown.1);
        let facts = Facts { is_late, is_shown, ..facts };
        let step = self.ladder.judge(&facts);
        if let Step::GiveUp(why) = step {
            return Err(Error::Unkept(why.into()));
        }
        if self.shared.has_log() && !self.shared.has_moments() {
            self.may_replay(step)?;
        }
        Ok(step)
    }

    /// Whether the log has all that came in, and memory all that the program has written.
    fn may_replay(&self, step: Step) -> Result<(), Error> {
        let inputs = self.kept.others_read_since(step, &self.shared);
        if inputs > 0 {
            return Err(Error::Unkept(format!(
                "{inputs} inputs since the checkpoint were read by threads whose calls are not logged: a replay would \
                 lose them"
            )));
        }
        match unrecordable(&self.kept.process().mappings()?) {
            Some(what) => Err(Error::Unkept(format!("it has {what}, which no log covers"))),
            None => Ok(()),
        }
    }

    /// Whether a descriptor of the program is known to be a connection.
    fn is_connection(&self, fd: i32) -> bool {
        let Ok(socket) = pidfd::duplicate(self.kept.process().handle(), fd) else { return false };
        socket_info::tcp(socket.as_fd()).is_some() || socket::peer(socket.as_fd()).is_ok_and(|(pid, _)| pid != 0)
    }

    /// What a step loses, in words.
    fn lost(&self, step: Step) -> Vec<String> {
        match step {
            Step::Drop(_, input) => vec![match self.shared.input_at(input) {
                Some((fd, bytes)) if self.is_connection(fd) => {
                    format!("the input of {bytes} bytes on descriptor {fd}: its connection ends")
                }
                Some((fd, bytes)) => format!("the input of {bytes} bytes on descriptor {fd}"),
                None => "the last input".into(),
            }],
            _ if self.shared.has_log() || self.settings.exactness != Exactness::BestEffort => Vec::new(),
            _ => vec!["what it did since the checkpoint is done again: output may be repeated".into()],
        }
    }
}
