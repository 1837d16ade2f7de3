//! The life of an orbit's process: how it is started, how its end is understood, what follows.

mod state;
pub(crate) use state::{EndedBy, Life, Process, Stage, WhyDown};

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use orbit_linux::{futex, poll};

use crate::area::PageRuns;
use crate::attach;
use crate::blackbox::{self, Crash};
use crate::call::{Call, Outcome};
use crate::channel::{MOVED, SLOTS, UpSide};
use crate::clock::A_CENTURY;
use crate::core::{Core, Inner, Options, Pending, Restart};
use crate::error::{Error, Kind, Result};
use crate::limits::{Applied, Limits};
use crate::queue::Waiting;
use crate::replica::{Replica, Taken};
use crate::runtime::{Coming, Runtime, Spare};
use crate::status;
use crate::template::{self, Ended, Template};
use crate::wire::Identity;

/// When the orbit is to be started again; kept by the supervisor.
pub(crate) enum Next {
    Nothing,
    StartAt(Instant),
}

/// How long the template may take to say how a process ended that has ended.
const MAX_WAIT_FOR_REPORT: Duration = Duration::from_secs(5);

/// How soon a start is tried again that failed.
const RETRY_START_AFTER: Duration = Duration::from_millis(50);

/// How soon a process is killed again that could not be.
const RETRY_KILL_AFTER: Duration = Duration::from_millis(20);

/// How long a process may take from its identity to the limits that came with it, before others are
/// set all the same.
const LIMITED_WITHIN: Duration = Duration::from_secs(1);

/// Failures in a row that are followed by an immediate start.
const FREE_FAILURES: u32 = 3;

/// Calls for a process that has the code of this orbit's functions: of its own template, where it
/// has one that lives. What main has at their addresses may be other code by now; then no other
/// template will do.
pub(crate) fn call_for_process<'a>(
    runtime: &'a Runtime,
    options: &Options,
    origin: Option<&Arc<Template>>,
) -> Result<(Coming, Becoming<'a>)> {
    let mut code = vec![options.entry.map_or(0, |f| f as usize)];
    code.extend(options.init.map(|f| f as usize));
    let coming = match origin {
        Some(origin) if origin.makes_again() => runtime.take_process_of(origin)?,
        Some(origin) if !code.iter().all(|at| origin.knows(*at)) => {
            let name = &options.name;
            let why =
                format!("orbit \"{name}\" has lost its template, and main has unloaded the code it was made with");
            return Err(Error::new(Kind::Down, why));
        }
        _ => runtime.take_process(&code)?,
    };
    Ok((coming, Becoming(runtime)))
}

/// A process taken that is in no list of the supervisor's yet; see [`Runtime::is_becoming`].
pub(crate) struct Becoming<'a>(&'a Runtime);

impl Drop for Becoming<'_> {
    fn drop(&mut self) {
        self.0.became();
    }
}

impl Inner {
    pub fn destroyed(&self) -> Error {
        Error::new(Kind::Gone, format!("orbit \"{}\" was destroyed", self.options.name))
    }

    /// That it has no process now, and why, if more is known than that it ended in a call.
    pub fn down(&self, core: &Core) -> Error {
        let name = &self.options.name;
        let why = core.life.why_down();
        let what = format!(
            "orbit \"{name}\" is down and will be started again{why}; wait for it with orbit_wait_ready \
             (Orbit::wait_ready), or give the \
             call a longer deadline"
        );
        Error::new(Kind::Down, what)
    }

    /// That it gets no further process, and why, if that is not its restart policy.
    pub fn ended(&self, why: Option<&Error>) -> Error {
        let name = &self.options.name;
        let why = match why {
            Some(why) => format!("orbit \"{name}\" has ended and cannot be started again: {why}; make another orbit"),
            None => format!("orbit \"{name}\" has ended and its restart policy leaves it down"),
        };
        Error::new(Kind::Gone, why)
    }

    /// An error if no call may be queued.
    pub fn check_open(&self, core: &Core) -> Result<()> {
        match core.life.stage() {
            // It was killed, and its end is still to be seen: the call is for the next process.
            Stage::Running(process) if process.ended_by == EndedBy::Kill => Err(self.down(core)),
            Stage::Running(_) => Ok(()),
            Stage::Destroyed => Err(self.destroyed()),
            Stage::Ended(why) => Err(self.ended(why.as_ref())),
            Stage::Down(_) if self.options.pending == Pending::Keep => Ok(()),
            Stage::Down(_) => Err(self.down(core)),
        }
    }

    /// An error if the orbit, or while it is down its next process, lacks the code of a call's
    /// function, which is 0 where the call has none. Then orbits that are made from now on have it,
    /// if main has.
    pub fn check_function(&self, core: &Core, function: usize) -> Result<()> {
        let template = core.life.template();
        if function == 0 || template.is_none_or(|t| t.knows(function)) {
            return Ok(());
        }
        if !template::is_loaded(function) {
            return Err(Runtime::no_code_at(function));
        }
        self.runtime.code_is_wanted(function);
        let name = &self.options.name;
        let why = format!(
            "the function at {function:#x} is not in orbit \"{name}\": it was loaded after the orbit was made; make \
             the orbit again"
        );
        Err(Error::new(Kind::Invalid, why))
    }

    /// Cancels kept calls whose function a process of this template lacks, if it is another one
    /// than theirs, which is gone.
    fn cancel_without_code(&self, core: &mut Core, template: &Arc<Template>) {
        let Some(origin) = core.life.origin().filter(|origin| !Arc::ptr_eq(origin, template)).cloned() else { return };
        let lacks = |function| function != 0 && !(origin.knows(function) && template.knows(function));
        self.cancel_locked(core, |waiting| lacks(waiting.call.function));
    }

    /// Gives a process its identity: from now on it is this orbit. `has_channel`: it has this
    /// orbit's channel already.
    pub fn give_process(&self, core: &mut Core, spare: Spare, up: UpSide, has_channel: bool) -> Result<()> {
        let start_at = core.queue.completed();
        up.completed.store(start_at, Ordering::Relaxed);
        up.begun.store(start_at, Ordering::Relaxed);
        core.limits.keep_below(self.runtime.room.left(), &self.options.name)?;
        core.limits.add(spare.process()?.pid)?;
        let mut name = [0u8; 16];
        for (to, from) in name[..15].iter_mut().zip(self.name.as_bytes()) {
            *to = *from;
        }
        let identity = Identity {
            entry: self.options.entry.map_or(0, |f| f as usize),
            init: self.options.init.map_or(0, |f| f as usize),
            start_at,
            passed: self.options.passed.len() as u32,
            attachments: core.replicas.len() as u32,
            args_first: u32::from(self.options.args_first),
            limits: core.limits.wire(),
            name,
        };
        core.queue.begin_process(&self.down);
        self.down.give_identity(&identity);
        if !has_channel {
            spare.send_channel(&self.down, &up, &self.event)?;
            if let Some(unused) = &spare.channel {
                unused.down.set_born(MOVED);
            }
        }
        attach::hand_all_over(&spare.process()?.socket, &self.options.passed, &core.replicas)?;
        let template = spare.template.clone();
        let Some(process) = spare.take() else { return Ok(()) };
        if core.stats.crashes + core.stats.left_threads == 0 {
            self.status.started(process.pid);
        } else {
            self.status.restarted(process.pid);
        }
        self.status.set_state(status::State::Idle);
        core.life.begin(Process {
            template,
            pid: process.pid,
            pidfd: process.pidfd,
            socket: process.socket,
            up: Arc::new(up),
            first_call: start_at,
            ended_by: EndedBy::Itself,
        });
        self.changed.notify_all();
        Ok(())
    }

    /// Kills the process; the supervisor sees its end.
    pub fn kill_process(&self, core: &Core) -> Result<()> {
        let Some(process) = core.life.process() else { return Ok(()) };
        process.template.kill(process.pid, &process.pidfd).map_err(|e| {
            let (name, pid) = (&self.options.name, process.pid);
            let kind = Kind::System(e.raw_os_error().unwrap_or(libc::EIO));
            Error::new(
                kind,
                format!("orbit \"{name}\" (process {pid}) can be killed neither by main nor by its template: {e}"),
            )
        })
    }

    /// Kills the process for a reason of main's.
    pub fn end_process(&self, core: &mut Core, why: EndedBy) {
        core.life.condemn(why);
        if self.kill_process(core).is_err() {
            self.recheck_by(Instant::now() + RETRY_KILL_AFTER);
        }
    }

    /// The memory of the orbit's process while it works on a call, in bytes; `None` while it does
    /// not.
    pub fn memory_in_use(&self) -> Option<u64> {
        let core = self.lock();
        core.queue.front()?;
        Some(core.limits.memory_now(core.life.healthy_process()?.pid))
    }

    /// Ends the process, since the memory around main comes to an end.
    pub fn end_for_memory(&self) {
        self.end_process(&mut self.lock(), EndedBy::Memory);
    }

    /// The process wrote something that no honest orbit writes: it is not listened to any more.
    pub fn break_off(&self, core: &mut Core, what: String) {
        core.life.note_nonsense(what);
        self.end_process(core, EndedBy::Nonsense);
    }

    /// Whether the process has ended, without waiting.
    pub fn process_has_ended(core: &Core) -> bool {
        core.life.process().is_some_and(|p| template::has_ended(&p.pidfd))
    }

    /// Kills the process if main has closed what leads to it: it is started again as after any end,
    /// if that is possible. True if so.
    pub fn end_if_lost(&self) -> bool {
        let core = self.lock();
        let leads = |p: &Process| p.pidfd.is_there() && p.socket.is_there() && self.event.is_there();
        let lost = core.life.process().is_some_and(|p| !leads(p));
        if lost {
            let _ = self.kill_process(&core);
        }
        lost
    }

    /// Understands the end of the process, gives its calls their outcomes, and says what follows.
    /// Called by the supervisor when the pidfd says so. What takes time is done without the lock:
    /// main's calls continue meanwhile.
    pub fn after_the_end(&self) -> Next {
        let (template, pid) = {
            let mut core = self.lock();
            if !Inner::process_has_ended(&core) {
                return Next::Nothing;
            }
            let Some((template, pid)) = core.life.process().map(|p| (p.template.clone(), p.pid)) else {
                return Next::Nothing;
            };
            core.life.note_asked(Some(pid));
            (template, pid)
        };
        let ended = template.how_ended(pid, MAX_WAIT_FOR_REPORT);
        let mut core = self.lock();
        let core = &mut *core;
        core.life.note_asked(None);
        if core.life.process().is_none_or(|p| p.pid != pid) {
            return Next::Nothing;
        }
        // What was completed before the end counts.
        self.reap_locked(core);
        let Some(process) = core.life.end_process() else { return Next::Nothing };
        let mut rest = core.queue.take_all();
        let left_threads = has_left_threads(&process, ended, core.queue.completed());
        if left_threads {
            core.stats.left_threads += 1;
            core.life.note_return();
            self.status.ended();
        } else {
            core.stats.crashes += 1;
            self.status.crashed();
        }
        let nonsense = core.life.take_nonsense();
        let was_up = process.up.ready.load(Ordering::Acquire) != 0;
        core.life.note_start((!was_up).then(|| {
            let mut end = understand(&process, ended, &core.limits, nonsense.clone(), false);
            if let Some(crash) = end.crash_mut() {
                crash.ask_names(&process.template);
            }
            WhyDown::Ended(end)
        }));
        let is_head = |head: &&mut Waiting| !left_threads && has_ended_in(&process, &head.call);
        let failed = rest.front_mut().filter(is_head).map_or(0, |head| {
            let mut outcome = if matches!(process.ended_by, EndedBy::Stuck { .. }) {
                stuck(&process, self.describe_lock(core))
            } else {
                understand(&process, ended, &core.limits, nonsense, is_late(&head.call))
            };
            if let Some(crash) = outcome.crash_mut() {
                crash.ask_names(&process.template);
            }
            self.release_copier(core, head);
            self.finish(core, &head.call, outcome, u64::MAX);
            1
        });
        // The call that failed stands in the queue of those kept, cancelled: later calls build on
        // its pages.
        let keep = left_threads || self.options.pending == Pending::Keep;
        let cancelled = match keep && rest.iter().all(|w| w.copier.is_none()) {
            // Its replicas stand after its last call, as it left them.
            true if left_threads => 0,
            true => self.renew_replicas(core, &rest, failed).max(failed),
            false => rest.len(),
        };
        for waiting in rest.iter_mut().take(cancelled) {
            self.release_copier(core, waiting);
            self.finish(core, &waiting.call, Outcome::Cancelled, u64::MAX);
            let slot = &self.down.slots[(waiting.call.number & (SLOTS - 1)) as usize];
            slot.state.store(crate::channel::CANCELLED, Ordering::SeqCst);
            waiting.cancelled = true;
        }
        if cancelled < rest.len() {
            core.queue.keep(rest);
        } else {
            self.forget_queue(core);
        }
        // Whoever sleeps on the old word must check again; main may write there, the process is
        // gone.
        process.up.completed.fetch_xor(1 << 31, Ordering::SeqCst);
        futex::wake(&process.up.completed, i32::MAX);
        let pause = match self.options.restart {
            _ if left_threads => Some(Duration::ZERO),
            Restart::Never => None,
            Restart::Always => Some(Duration::ZERO),
            Restart::OnFailure { give_up, .. } if give_up > 0 && core.life.failures() >= give_up => None,
            Restart::OnFailure { first_pause, longest_pause, .. } => {
                let doublings = core.life.failures().saturating_sub(FREE_FAILURES + 1).min(20);
                let pause = if core.life.failures() <= FREE_FAILURES {
                    Duration::ZERO
                } else {
                    first_pause.saturating_mul(1 << doublings)
                };
                Some(pause.min(longest_pause).min(A_CENTURY))
            }
        };
        self.changed.notify_all();
        match pause {
            None => {
                core.life.end(None);
                self.drop_pending(core);
                self.status.set_state(status::State::Down);
                Next::Nothing
            }
            Some(pause) => {
                self.status.set_state(status::State::Restarting);
                Next::StartAt(Instant::now() + pause)
            }
        }
    }

    /// The process that has ended may have written to its replicas through their descriptors. This
    /// makes fresh ones, with the areas as they are now, and returns for which calls that suffices:
    /// from which place in the queue on each call gets the snapshot of its submission. The log
    /// brings back the pages that waiting calls have there. A page that is other now than a call
    /// saw it must be among them, in the part of that call or of one before it; else what the call
    /// saw of that page is nowhere any more. So no call is kept if main changed a page since that
    /// none of them brings, and none from before the last one that brings a page as the first. The
    /// first `failed` calls are not kept anyway.
    fn renew_replicas(&self, core: &mut Core, waiting: &VecDeque<Waiting>, failed: usize) -> usize {
        let nowhere = waiting.len();
        if nowhere <= failed {
            return nowhere;
        }
        let mut from = core.queue.naming_detached(nowhere);
        let mut brought: HashMap<u32, PageRuns> = HashMap::new();
        let mut start = core.queue.log().tail();
        for (place, one) in waiting.iter().enumerate() {
            core.queue.log().pages_between(&self.down, start, one.log_end, |area, first, count| {
                // The pages of the calls before lie in the area's own memory, which stands still.
                if core.replicas.iter().any(|r| r.area.id() == area && r.area.is_shared()) {
                    return;
                }
                let pages = brought.entry(area).or_default();
                let before = pages.pages();
                pages.push(first, count);
                let known_before = core.replicas.iter().any(|r| r.area.id() == area && r.first_call != one.call.number);
                if known_before && pages.pages() > before {
                    from = from.max(place);
                }
            });
            start = one.log_end;
        }
        if from >= nowhere {
            return nowhere;
        }
        for replica in &mut core.replicas {
            let brought = brought.entry(replica.area.id()).or_default();
            let Ok(Some(fresh)) = renewed(replica, brought) else { return nowhere };
            *replica = fresh;
        }
        from
    }

    /// Starts the orbit again, if it is still wanted; on failure says when to try again. Called by
    /// the supervisor; the process is made without the lock.
    pub fn start_again(&self) -> Next {
        let origin = {
            let core = self.lock();
            if !core.life.is_down() {
                return Next::Nothing;
            }
            core.life.origin().cloned()
        };
        let called = call_for_process(&self.runtime, &self.options, origin.as_ref());
        let started = called.and_then(|(coming, _becoming)| {
            let up = UpSide::create();
            let spare = coming.process()?;
            let mut core = self.lock();
            // Destroyed meanwhile: the process is let go of.
            if !core.life.is_down() {
                return Ok(());
            }
            self.cancel_without_code(&mut core, &spare.template);
            self.give_process(&mut core, spare, up?, false)?;
            core.stats.restarts += 1;
            Ok(())
        });
        match started {
            Ok(()) => Next::Nothing,
            // What every process of this orbit needs was closed by the program.
            Err(e) if e.kind() == Kind::Gone => {
                let mut core = self.lock();
                if core.life.is_down() {
                    self.give_up(&mut core, e);
                }
                Next::Nothing
            }
            Err(e) => {
                self.lock().life.note_start(Some(WhyDown::Failed(e.to_string())));
                Next::StartAt(Instant::now() + RETRY_START_AFTER)
            }
        }
    }

    /// The orbit gets no further process, for this reason.
    fn give_up(&self, core: &mut Core, why: Error) {
        core.life.end(Some(why));
        self.drop_pending(core);
        self.status.set_state(status::State::Down);
        self.changed.notify_all();
    }

    /// Calls that wait for a process that will not come.
    fn drop_pending(&self, core: &mut Core) {
        for mut waiting in core.queue.take_all() {
            self.release_copier(core, &mut waiting);
            self.finish(core, &waiting.call, Outcome::Cancelled, u64::MAX);
        }
        self.forget_queue(core);
    }

    /// No call is kept: counts the queue as completed, and lets go of the replicas. Pages that were
    /// in the log are gone with it, and the process that failed may have written to its replicas
    /// through their descriptors: the next one gets fresh ones, and with its first call all of the
    /// areas.
    fn forget_queue(&self, core: &mut Core) {
        core.queue.forget_all();
        core.replicas.clear();
        core.forget.clear();
    }

    /// Ends the orbit for good. Waits for the end of its process, without the lock.
    pub fn destroy(&self) -> Result<()> {
        let (stage, asked, mut killed) = {
            let mut core = self.lock();
            if core.life.is_destroyed() {
                return Ok(());
            }
            self.status.set_state(status::State::Ended);
            let killed = self.kill_process(&core);
            let stage = core.life.destroy();
            self.drop_pending(&mut core);
            self.changed.notify_all();
            (stage, core.life.asked(), killed)
        };
        if let Stage::Running(process) = &stage {
            let until = Instant::now() + MAX_WAIT_FOR_REPORT;
            let mut has_ended = template::has_ended(&process.pidfd);
            while killed.is_ok() && !has_ended && Instant::now() < until {
                let number = process.pidfd.number().unwrap_or(-1);
                let mut fds = [libc::pollfd { fd: number, events: libc::POLLIN, revents: 0 }];
                let _ = poll::poll(&mut fds, Some(Duration::from_millis(100)));
                has_ended = template::has_ended(&process.pidfd);
            }
            if killed.is_ok() && !has_ended {
                let (pid, name) = (process.pid, &self.options.name);
                let why = format!(
                    "process {pid} of orbit \"{name}\" was killed and has not ended within {MAX_WAIT_FOR_REPORT:?}"
                );
                killed = Err(Error::new(Kind::TimedOut, why));
            }
            // Its end is reported, and taken from the template's list, once.
            if killed.is_ok() && asked != Some(process.pid) {
                let _ = process.template.how_ended(process.pid, MAX_WAIT_FOR_REPORT);
            }
            process.up.completed.fetch_xor(1 << 31, Ordering::SeqCst);
            futex::wake(&process.up.completed, i32::MAX);
        }
        self.lock().limits.remove();
        killed
    }

    /// Lets go of an area.
    pub fn detach(&self, area: u32) {
        let mut core = self.lock();
        if let Some(at) = core.replicas.iter().position(|r| r.area.id() == area) {
            let replica = core.replicas.swap_remove(at);
            core.queue.note_detached();
            if core.life.process().is_some() {
                core.forget.push(replica.number);
            } else {
                self.cancel_locked(&mut core, |_| true);
            }
        }
    }

    pub fn set_limits(&self, limits: Limits) -> Result<()> {
        self.runtime.check_process()?;
        let until = Instant::now() + LIMITED_WITHIN;
        loop {
            let mut core = self.lock();
            if core.life.is_destroyed() {
                return Err(self.destroyed());
            }
            // A process that is just starting would put the limits it was given over these.
            let limited = |p: &Process| p.up.limited.load(Ordering::SeqCst) != 0 || template::has_ended(&p.pidfd);
            if core.life.process().is_none_or(limited) || Instant::now() > until {
                let pid = core.life.process().map(|p| p.pid);
                return core.limits.change(&limits, &self.options.name, pid);
            }
            drop(core);
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// A replica in the place of this one, with the area as it is now, owed what main has changed since
/// the last call; `None` if that is more than the pages `brought` by the log.
fn renewed(replica: &Replica, brought: &PageRuns) -> Result<Option<Replica>> {
    let only_brought = |changed: &Taken| {
        let mut both = brought.clone();
        both.extend(changed.runs());
        both.pages() == brought.pages()
    };
    // Once before the copy, to do no work in vain, and once after it, for what main wrote
    // meanwhile.
    if replica.area.is_shared() {
        return Replica::make(&replica.area, replica.first_call).map(Some);
    }
    let mut changed = Taken::changed(replica, PageRuns::new())?;
    if !only_brought(&changed) {
        return Ok(None);
    }
    let fresh = Replica::make(&replica.area, replica.first_call)?;
    Taken::changed(&fresh, PageRuns::new())?.into_replica()?;
    changed.changed_since()?;
    let keeps = only_brought(&changed);
    changed.into_owed_of(&fresh);
    Ok(keeps.then_some(fresh))
}

/// Whether the call is past its deadline.
fn is_late(call: &Call) -> bool {
    call.deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// Whether this call, the first one not completed, is the one in which the process has ended. Not
/// so if the process was killed for a call past its deadline, which returned all the same before
/// the end, and this one, behind it, had not begun.
fn has_ended_in(process: &Process, call: &Call) -> bool {
    let begun = || process.up.begun.load(Ordering::SeqCst) != call.number;
    !matches!(process.ended_by, EndedBy::Deadline { .. }) || is_late(call) || begun()
}

/// Whether the process ended only since its last call had left threads. It may say so once it has
/// done a call: then it is worth another at once.
fn has_left_threads(process: &Process, ended: Option<Ended>, completed: u32) -> bool {
    process.ended_by == EndedBy::Itself
        && ended == Some(Ended { code: libc::CLD_EXITED, status: 0 })
        && completed != process.first_call
        && process.up.left_threads.load(Ordering::Acquire) != 0
}

/// That the process was ended for a task asleep on this lock.
fn stuck(process: &Process, (lock, why): (usize, String)) -> Outcome {
    // SAFETY: as in `understand`.
    let record = unsafe { blackbox::read(&process.up.black_box) };
    let mut crash = record.map_or_else(|| Crash::bare(libc::SIGKILL), |record| record.into_crash(libc::SIGABRT));
    (crash.address, crash.message) = (lock, Some(why));
    Outcome::Stuck(Box::new(crash))
}

/// How a process that has ended came to its end, for a call that is `late` or not.
fn understand(
    process: &Process,
    ended: Option<Ended>,
    limits: &Applied,
    nonsense: Option<String>,
    late: bool,
) -> Outcome {
    // SAFETY: the black box is mapped as long as `up` lives; its reader takes nothing in it for
    // granted.
    let record = unsafe { blackbox::read(&process.up.black_box) };
    match process.ended_by {
        // Unless it crashed just then.
        EndedBy::Deadline { .. } if ended.is_none_or(|e| matches!(e.status, libc::SIGABRT | libc::SIGKILL)) => {
            if !late {
                // It met one that came after the late call.
                return Outcome::Killed(libc::SIGKILL);
            }
            let place = record.map_or_else(|| Crash::bare(libc::SIGKILL), |r| r.into_crash(libc::SIGABRT));
            return Outcome::TimedOut(Some(Box::new(place)));
        }
        EndedBy::Memory => return Outcome::OutOfMemory,
        EndedBy::Nonsense => {
            let mut crash = record.map_or_else(|| Crash::bare(libc::SIGKILL), |r| r.into_crash(libc::SIGKILL));
            crash.message = nonsense.map(|what| format!("ended by main: the orbit {what}"));
            return Outcome::Crashed(Box::new(crash));
        }
        EndedBy::Deadline { .. } | EndedBy::Itself | EndedBy::Kill | EndedBy::Stuck { .. } => {}
    }
    let out_of_memory = limits.oom_killed();
    match ended {
        Some(Ended { code: libc::CLD_EXITED, status }) => Outcome::Exited(status),
        Some(Ended { status: libc::SIGKILL, .. }) if out_of_memory => Outcome::OutOfMemory,
        // The template is gone and has taken its orbits along.
        None | Some(Ended { status: libc::SIGKILL, .. }) => Outcome::Killed(libc::SIGKILL),
        Some(Ended { status: signal, .. }) => match record {
            Some(record) if record.memory_exhausted => Outcome::OutOfMemory,
            Some(record) => Outcome::Crashed(Box::new(record.into_crash(signal))),
            None if is_crash(signal) => Outcome::Crashed(Box::new(Crash::bare(signal))),
            None => Outcome::Killed(signal),
        },
    }
}

/// Signals that a process brings upon itself.
fn is_crash(signal: i32) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGABRT | libc::SIGSYS | libc::SIGTRAP
    )
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked child's copy names its parent's processes.
        if self.runtime.check_process().is_ok() {
            let _ = self.destroy();
        } else {
            let core = self.core.get_mut().unwrap_or_else(|e| e.into_inner());
            std::mem::forget(core.life.destroy());
        }
    }
}
