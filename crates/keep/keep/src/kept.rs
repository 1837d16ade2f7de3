//! A program that is kept: checkpoints of it, and going back to them.

use crate::ahead::Ahead;
use crate::appenders::Appenders;
use crate::arguments::Exactness;
use crate::attach::FATAL;
use crate::beside::{self, Beside};
use crate::capture::{self, Tracker};
use crate::error::Error;
use crate::files::{self, FileState};
use crate::history::{Checkpoint, History};
use crate::ladder::{Facts, Step};
use crate::marks::{self, Cost, Marks, Witness};
use crate::objects::Objects;
use crate::outside::Outside;
use crate::restore::{self, Last, Restored};
use crate::shared::{CrashReport, LogState, Shared};
use crate::state::State;
use graft::{Process, Stopped};
use orbit_linux::calls_made::{CallsMade, Made};
use orbit_linux::socket_info;
use orbit_linux::status::Status;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How much stack a handler of the program for a fatal signal is taken to use at most.
const HANDLER_STACK: u64 = 8 << 20;
/// Addresses of a stack that make the position of a crash.
const POSITION_FRAMES: usize = 2;

/// What came of asking for a checkpoint.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It was taken.
    Checkpoint(Figures),
    /// A thread has crashed meanwhile.
    Crashed,
    /// A call was under way, and did not end in time.
    Unsafe,
    /// A handler of the program for a fatal signal runs: the program is about to die.
    Dying,
    /// The library is not set up yet.
    NotReady,
}

/// Figures of a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// How long the program stood still.
    pub pause: Duration,
    /// Pages copied.
    pub pages: usize,
}

/// How a checkpoint is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Checkpoints that are kept.
    pub generations: usize,
    /// Time between them.
    pub interval: Duration,
    /// Memory for pages, in bytes.
    pub memory: u64,
    /// Without a log: what a recovery may cost.
    pub exactness: Exactness,
}

/// A program and its checkpoints.
pub(crate) struct Kept {
    process: Process,
    tracker: Option<Tracker>,
    history: History<State>,
    policy: Policy,
    /// Pages that the next checkpoint is expected to copy.
    expected: usize,
    ahead: Ahead,
    appenders: Appenders,
    /// Without a log, where going back has to be exact.
    witness: Option<Witness>,
    /// Signals from outside that it has died of.
    from_outside: u64,
    /// The program in the process, as [`Shared::images`] counts them.
    image: u32,
}

impl Kept {
    pub fn new(process: Process, policy: Policy) -> Kept {
        let history = History::new();
        let appenders = Appenders::default();
        Kept {
            process,
            tracker: None,
            history,
            policy,
            expected: 0,
            ahead: Ahead::default(),
            appenders,
            witness: None,
            from_outside: 0,
            image: 0,
        }
    }

    /// Forgets everything: there is another program in the process.
    pub fn begin_anew(&mut self, image: u32) {
        self.tracker = None;
        self.history = History::new();
        (self.expected, self.ahead, self.image) = (0, Ahead::default(), image);
    }

    /// From now on checkpoints are kept so.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Bytes of pages held.
    pub fn bytes(&self) -> u64 {
        self.history.pages() as u64 * crate::pages::PAGE
    }

    /// End of the log at the newest checkpoint.
    pub fn newest_log(&self) -> u64 {
        self.history.newest().map_or(0, |c| c.state.log.head)
    }

    /// Inputs that other threads than the serving one have read since the checkpoint that a step
    /// goes back to.
    pub fn others_read_since(&self, step: Step, shared: &Shared) -> u64 {
        let checkpoint = self.checkpoint_of(step);
        checkpoint.map_or(0, |c| shared.others_read().saturating_sub(c.state.others_read))
    }

    fn checkpoint_of(&self, step: Step) -> Option<&Checkpoint<State>> {
        let (Step::Replay(index) | Step::Environment(index) | Step::Drop(index, _)) = step else { return None };
        self.history.newest_first().nth(index)
    }

    /// How old the checkpoint is that a step goes back to.
    pub fn age(&self, step: Step) -> Duration {
        self.checkpoint_of(step).map_or(Duration::ZERO, |c| c.taken.elapsed())
    }

    pub fn checkpoints(&self) -> usize {
        self.history.newest_first().count()
    }

    /// Whether it is judged what going back costs: there is no log that shows it, and not anything
    /// is allowed.
    fn is_judged(&self, shared: &Shared) -> bool {
        !shared.has_log() && self.policy.exactness != Exactness::BestEffort
    }

    /// Whether written pages are not tracked: each checkpoint copies all that the program holds.
    pub fn copies_all(&self) -> bool {
        self.tracker.as_ref().is_some_and(Tracker::copies_all)
    }

    /// Why nothing shows what the program has done since a checkpoint, where that is needed.
    pub fn lacks_witness(&self) -> Option<&str> {
        self.witness.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// What counts its calls, where that is needed and allowed; its bell rings once it does
    /// something after a checkpoint that others can see.
    pub fn witness(&self) -> Option<&CallsMade> {
        self.witness.as_ref()?.as_ref().ok()
    }

    /// Takes a checkpoint if the program is at a safe point.
    pub fn checkpoint(&mut self, shared: &Shared) -> Result<Taken, Error> {
        if !shared.is_ready() {
            return Ok(Taken::NotReady);
        }
        if self.witness.is_none() && self.is_judged(shared) {
            let counted = CallsMade::of(self.process.pid(), &marks::classes());
            self.witness = Some(counted.map_err(|error| format!("counting its system calls by bpf(2): {error}")));
        }
        let Kept { process, tracker, history, policy, expected, ahead, appenders, witness, image, .. } = self;
        let witness = witness.as_ref().and_then(|witness| witness.as_ref().ok());
        let earlier = history.newest().map(|c| c.state.clone());
        let before = earlier.as_ref().map(|state| state.mappings.clone());
        let mut pool = std::mem::take(history.pool());
        // Faults come before the pause, not in it.
        pool.reserve(1024.max(*expected + *expected / 4));
        if let (Some(tracker), Some(before)) = (tracker.as_ref(), before.as_deref()) {
            ahead.copy(tracker, before, &mut pool);
        }
        let (mut is_new_log, mut is_scanned) = (false, false);
        let image = *image;
        let process: &Process = process;
        let files = earlier.as_ref().map_or(&[][..], |earlier| &earlier.files);
        let outside = || (Outside::read(process.pid()), files::capture(process, files, appenders));
        let outside: Option<beside::Work<'_, _>> = if shared.has_log() { None } else { Some(&outside) };
        let mut take = |outside: Option<&Beside<'_, _>>, stopped: &mut Stopped<'_>| -> Result<_, Error> {
            if shared.images() != image || !shared.is_ready() {
                return Ok(Err(Taken::NotReady));
            }
            // Nothing is made in it, so what is read beside is its own.
            let is_begun = tracker.as_ref().is_some_and(Tracker::has_batch);
            outside.filter(|_| is_begun).into_iter().for_each(Beside::start);
            if !shared.is_mapped(&stopped.mappings()?) {
                return Err(Error::Unkept(
                    "it has executed another program, which does not have the keeper's library".into(),
                ));
            }
            if shared.crash().is_some() {
                return Ok(Err(Taken::Crashed));
            }
            if let Some((tid, sp)) = shared.dying()
                && is_below(stopped, tid, sp)
            {
                return Ok(Err(Taken::Dying));
            }
            let is_moment = !shared.has_moments() || shared.at_moment().0;
            if shared.is_replaying() || !is_safe(stopped, shared) || !is_moment {
                return Ok(Err(Taken::Unsafe));
            }
            if tracker.is_none() {
                *tracker = Some(Tracker::new(stopped)?);
            }
            let Some(tracker) = tracker.as_ref() else { return Ok(Err(Taken::NotReady)) };
            let logged = Some((shared.serving(), shared.after_syscall(), shared.again()));
            let is_left = tracker.has_batch_in(&stopped.mappings()?);
            if !is_left && is_begun {
                // The batch is made again, with descriptors in the program.
                outside.into_iter().for_each(Beside::discard);
            }
            let mut batch = if shared.has_log() { None } else { Some(tracker.batch(stopped)?) };
            if !is_begun {
                outside.into_iter().for_each(Beside::start);
            }
            is_scanned = true;
            let memory = capture::memory(stopped, tracker, &mut pool, before.as_deref(), *expected)?;
            let kernel = match (batch.as_mut().and_then(|batch| batch.as_mut()), outside) {
                (Some(batch), Some(outside)) => {
                    let (outside, files) = outside.result();
                    let stacks = shared.stacks();
                    Some(capture::Kernel { batch, stacks, outside, files, before: earlier.as_ref() })
                }
                _ => None,
            };
            let children = kernel.as_ref().map(|kernel| kernel.outside.children.clone());
            let mut state = capture::state(stopped, memory.mappings, logged, kernel)?;
            if shared.has_log() {
                state.log = shared.log_state()?;
                state.others_read = shared.others_read();
                let used = earlier.as_ref().map_or(0, |earlier| state.log.head.saturating_sub(earlier.log.head));
                is_new_log = shared.grow_log(used) || !shared.is_logging();
                shared.record();
            }
            if let Some((witness, children)) = witness.zip(children) {
                // After all that was done in it for the checkpoint.
                let marks = Marks::of(Made::default(), process, &state.files, &children);
                witness.set_descriptors(marks.descriptors());
                witness.arm();
                state.marks = Some(Marks { made: witness.read(), ..marks });
            }
            Ok(Ok((memory.copied, memory.anew, state, stopped.stopped_for())))
        };
        let taken = beside::with(outside, |outside| process.while_stopped(|stopped| take(outside, stopped)));
        let taken = match (taken, tracker.as_ref()) {
            (Ok(Ok((copied, anew, state, pause))), Some(tracker)) => {
                Ok(Ok((tracker.collect(copied, &mut pool), anew, state, pause)))
            }
            (Ok(Err(not)), _) => Ok(Err(not)),
            (Ok(Ok(_)), None) => Ok(Err(Taken::NotReady)),
            (Err(error), _) => Err(error),
        };
        *history.pool() = pool;
        let (pages, anew, state, pause) = match taken {
            Ok(Ok(taken)) => taken,
            Ok(Err(not)) => return Ok(not),
            Err(error) => {
                // Pages that were found written do not count as written any more, and are in no
                // checkpoint: the next is full.
                if is_scanned {
                    self.begin_anew(image);
                }
                return Err(error);
            }
        };
        let figures = Figures { pause, pages: pages.len() };
        // The first one copies everything, later ones what was written.
        *expected = if history.newest().is_some() { pages.len() } else { 0 };
        let earlier = ahead.take(&pages, &anew, history.pool());
        let figures = Figures { pages: figures.pages + earlier.len(), ..figures };
        let mut changed: Vec<_> = Vec::with_capacity(pages.len());
        let copied: HashSet<u64> = match anew.is_empty() {
            true => HashSet::new(),
            false => pages.iter().map(|(address, _)| *address).collect(),
        };
        for (start, end) in anew {
            let gone = history.image().within(start, end).into_iter().filter(|address| !copied.contains(address));
            changed.extend(gone.map(|address| (address, None)));
        }
        changed.extend(earlier.into_iter().chain(pages).map(|(address, page)| (address, Some(page))));
        if tracker.as_ref().is_some_and(Tracker::copies_all) {
            let image = history.image();
            changed.retain(|(address, page)| image.get(*address) != page.as_deref());
        }
        let now = Instant::now();
        history.commit(changed, state, now);
        history.thin(if is_new_log { 1 } else { policy.generations }, policy.interval, now);
        self.trim(shared);
        self.watch_only_what_is_kept();
        Ok(Taken::Checkpoint(figures))
    }

    /// A program that rotates its logs has other files with each checkpoint.
    fn watch_only_what_is_kept(&self) {
        let now = self.history.newest().map_or(0, |newest| newest.state.files.len());
        if self.appenders.watched() > now {
            let files = self.history.newest_first().flat_map(|checkpoint| &checkpoint.state.files);
            self.appenders.watch_only(&files.map(FileState::id).collect());
        }
    }

    /// Fatal signals of which the kernel calls another handler than ours, or none, as of the newest
    /// checkpoint; `ours`: addresses of handlers. Without a log.
    pub fn replaced_handlers(&self, ours: &[u64]) -> Vec<i32> {
        let objects = self.history.newest().and_then(|newest| newest.state.objects.as_ref());
        let is_ours = |objects: &Objects, signal: i32| objects.handler(signal).is_none_or(|at| ours.contains(&at));
        let of = |objects: &Objects| FATAL.into_iter().filter(|signal| !is_ours(objects, *signal)).collect();
        objects.map(of).unwrap_or_default()
    }

    /// Forgets the oldest checkpoints until pages and log are within their bounds.
    fn trim(&mut self, shared: &Shared) {
        while self.checkpoints() > 1 && self.bytes() > self.policy.memory {
            self.history.forget_oldest();
        }
        if shared.has_log() {
            let head = self.history.newest().map_or(0, |c| c.state.log.head);
            while self.checkpoints() > 1
                && self.history.oldest().is_some_and(|c| head - c.state.log.head.min(head) > shared.log_bytes() / 2)
            {
                self.history.forget_oldest();
            }
            if let Some(oldest) = self.history.oldest() {
                shared.set_oldest(oldest.state.log.head);
            }
        }
    }

    /// What the ladder has to know of a crash.
    pub fn facts(&self, shared: &Shared, crash: &CrashReport, last_input: Option<u64>) -> Facts {
        let now = Instant::now();
        Facts {
            at: now,
            newest: self.history.newest().filter(|_| !shared.has_moments()).map_or(now, |newest| newest.taken),
            ip: if crash.signal == CrashReport::HANG { 0 } else { self.position(crash) },
            is_hang: crash.signal == CrashReport::HANG,
            // A signal from outside comes of no input.
            last_input: last_input.filter(|_| !self.is_from_outside(crash)),
            // In request mode the connection of the request is lost as a whole.
            is_late: false,
            is_shown: shared.has_moments(),
            may_drop: shared.has_moments() || last_input.is_some_and(|input| shared.has_only_asked_since(input)),
            checkpoints: self.history.newest_first().map(|c| start(c, shared)).collect(),
        }
    }

    /// The program has crashed, which is not what a replay has come to.
    pub fn has_crashed(&mut self, crash: &CrashReport) {
        self.from_outside += u64::from(self.is_from_outside(crash));
    }

    /// Whether another process has sent the signal.
    fn is_from_outside(&self, crash: &CrashReport) -> bool {
        crash.signal > 0 && crash.sender().is_some_and(|sender| sender != self.process.pid())
    }

    /// Where a crash counts: two of one position are the same crash. The instruction; of `abort`,
    /// which is one instruction in libc, also what its stack has outside of libc; a signal from
    /// outside is never the same.
    fn position(&self, crash: &CrashReport) -> u64 {
        if self.is_from_outside(crash) {
            return crash.ip ^ self.from_outside << 48;
        }
        let is_abort = (crash.signal, crash.code) == (libc::SIGABRT, libc::SI_TKILL);
        let mut stack = [0u8; 4096];
        let Ok(mappings) = self.process.mappings() else { return crash.ip };
        if !is_abort || self.process.read(crash.sp, &mut stack).is_err() {
            return crash.ip;
        }
        let is_code = |address: &u64| {
            let at = mappings.partition_point(|entry| entry.end <= *address);
            mappings.get(at).is_some_and(|entry| {
                entry.start <= *address && entry.protection & libc::PROT_EXEC != 0 && !entry.name.contains("/libc.so")
            })
        };
        let words = stack.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        let outside = words.filter(is_code).take(POSITION_FRAMES);
        outside.fold(crash.ip, |position, address| position.rotate_left(9) ^ address)
    }

    /// Takes a step of the ladder; returns what was done, and how long the program stood still for
    /// it. `None` if a logged call was under way in the serving thread, and it is not there that it
    /// has crashed: nothing was done.
    pub fn recover(
        &mut self,
        shared: &Shared,
        crash: &CrashReport,
        step: Step,
    ) -> Result<Option<(Restored, Duration)>, Error> {
        let (index, drop_at) = match step {
            Step::Replay(index) | Step::Environment(index) => (index, None),
            Step::Drop(index, input) => (index, Some(input)),
            Step::GiveUp(why) => return Err(Error::Unkept(why.into())),
        };
        let is_judged = self.is_judged(shared);
        let allowed = self.policy.exactness;
        let Kept { process, tracker, history, ahead, appenders, witness, image, .. } = self;
        if shared.images() != *image {
            return Err(Error::Unkept("there is no checkpoint yet of the program that it has executed".into()));
        }
        let Some(tracker) = tracker.as_ref() else { return Err(Error::Unkept("there is no checkpoint yet".into())) };
        let process: &Process = process;
        let target = history.newest_first().nth(index).map(|c| (c.state.files.clone(), c.taken));
        let (then, since) = target.unwrap_or_else(|| (Vec::new(), Instant::now()));
        let outside = || (Outside::read(process.pid()), files::now(process, &then, since, appenders));
        let outside: Option<beside::Work<'_, _>> = if shared.has_log() { None } else { Some(&outside) };
        let mut put_back = |outside: Option<&Beside<'_, _>>, stopped: &mut Stopped<'_>| -> Result<_, Error> {
            let is_at_crash = crash.tid == shared.serving() && crash.signal != CrashReport::HANG;
            if shared.has_log() && !is_at_crash && !is_safe(stopped, shared) {
                return Ok(None);
            }
            if shared.has_log() {
                // It may be in a replay, in which no calls can be made in it.
                stopped.thread(shared.serving())?.set_dispatch(None)?;
                shared.set_confined(false);
                if let Some(checkpoint) = history.newest_first().nth(index) {
                    let waits = waiting_signals(process.pid(), shared.serving(), &checkpoint.state);
                    if let Some(signal) = waits {
                        return Err(Error::Unkept(format!(
                            "signal {signal} waits, which it did not block at the checkpoint"
                        )));
                    }
                }
            }
            let mut cost = Cost::default();
            if is_judged {
                let was = history.newest_first().nth(index).and_then(|c| c.state.marks.as_ref());
                let Some((Ok(witness), was)) = witness.as_ref().zip(was) else {
                    return Err(Error::Unkept("nothing shows what has left it since the checkpoint".into()));
                };
                // Before anything is done in it.
                let made = witness.read();
                let files = files::now(process, &then, since, appenders);
                let now = Marks::of(made, process, &files, &Outside::read(process.pid()).children);
                let shared_memory = stopped.mappings()?;
                let shared_memory = marks::shared_memory(&shared_memory);
                cost = marks::judge(was, &now, shared_memory, allowed).map_err(Error::Unkept)?;
                // From here on it is put back, or dies, which ends them too.
                for fd in &cost.reset {
                    socket_info::reset(process.duplicate(*fd)?.as_fd()).map_err(Error::io("resetting a connection"))?;
                }
            }
            let mut differ = history.go_back(index);
            // They were written since the newest checkpoint, and do not count as such any more.
            differ.extend(ahead.forget(history.pool()));
            let history = &*history;
            let last = || {
                if let Some(newest) = history.newest() {
                    let log = &LogState { head: start(newest, shared), ..newest.state.log };
                    shared.change_environment(matches!(step, Step::Environment(_)));
                    shared.replay_from(log, drop_at, crash.ip);
                    shared.set_confined(shared.has_log());
                }
                shared.clear_crash();
            };
            let confined = shared.has_log().then(|| (shared.serving(), shared.confinement()));
            let is_proven = shared.has_log() && !shared.has_moments();
            let (stacks, closed) = (shared.stacks(), &cost.closed);
            let last =
                Last { crashed: crash.tid, stacks, is_exact: is_judged, is_proven, closed, confined, work: last };
            let done = restore::all(stopped, tracker, history, differ, outside, last)?;
            let made = witness.as_ref().filter(|_| is_judged).and_then(|witness| Some(witness.as_ref().ok()?.read()));
            let done = Restored {
                connections_reset: cost.reset.len() + cost.closed.len(),
                appended: cost.appended,
                signals_handled: cost.handled,
                ..done
            };
            Ok(Some((done, stopped.stopped_for(), made)))
        };
        let done = beside::with(outside, |outside| process.while_stopped(|stopped| put_back(outside, stopped)))?;
        let Some((restored, stopped, made)) = done else { return Ok(None) };
        shared.release();
        if let Some(made) = made {
            marks::put_back(history.states_mut().filter_map(|state| state.marks.as_mut()), made);
        }
        Ok(Some((restored, stopped)))
    }
}

/// Where a replay from this checkpoint begins. In request mode the program's state does not depend
/// on earlier requests: at the one that it serves.
fn start(checkpoint: &Checkpoint<State>, shared: &Shared) -> u64 {
    match (shared.has_moments(), shared.is_between()) {
        (true, true) => checkpoint.state.log.head.max(shared.log_head()),
        (true, false) => checkpoint.state.log.head.max(shared.moment()),
        (false, _) => checkpoint.state.log.head,
    }
}

/// Whether nothing is under way: the serving thread is outside of logged calls, or waits in one
/// that has not begun to do anything.
fn is_safe(stopped: &mut Stopped<'_>, shared: &Shared) -> bool {
    match shared.busy() {
        0 => true,
        1 => {
            let after = shared.after_syscall();
            let waits = |thread: &mut graft::Thread<'_, '_>| {
                let at = thread.general().map(|r| r.rip).unwrap_or(0);
                at == after && thread.interrupted().ok().flatten().is_some()
            };
            stopped.thread(shared.serving()).is_ok_and(|mut thread| waits(&mut thread))
        }
        _ => false,
    }
}

/// A signal that a thread blocks and did not block at the checkpoint, if one waits: with a log what
/// waits is not rolled back, and would come in the replay at once.
fn waiting_signals(pid: i32, tid: i32, then: &State) -> Option<u32> {
    let now = Status::of_thread(pid, tid).ok()?;
    let mask = then.threads.iter().find(|thread| thread.tid == tid)?.mask;
    let waits = now.pending_signals() & now.blocked_signals()? & !mask;
    (waits != 0).then(|| waits.trailing_zeros() + 1)
}

/// Whether the thread is still in a call made at stack pointer `sp`.
fn is_below(stopped: &mut Stopped<'_>, tid: i32, sp: u64) -> bool {
    let now = stopped.thread(tid).and_then(|mut thread| thread.general()).map(|r| r.rsp);
    now.is_ok_and(|now| now <= sp && sp - now < HANDLER_STACK)
}
