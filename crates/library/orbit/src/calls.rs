//! Life of a call in main: snapshot, queueing, completion.
//!
//! Everything here runs under the orbit's lock, except the sleeping. Calls are numbered without end
//! (`u32`, wrapping) and end in order; `pending` holds those that main has submitted and not seen
//! completed, the first one being the one that runs.
//!
//! ```text
//! submitted == completed + pending.len()            completed as main has counted it
//! ```
//!
//! A call that is cancelled keeps its slot and its part of the log until the orbit comes to it, for
//! calls behind it build on its pages; with none behind it, it is taken back
//! (`queue/take_back.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use orbit_linux::futex;

use crate::answers::Nonsense;
use crate::area::{Area, Engine};
use crate::blackbox::Crash;
use crate::call::{Call, CallOptions, Coalesce, MOST_WAITING_BYTES, Notice, Outcome};
use crate::channel::{
    ASKED, CANCELLED, COPIER_DONE, COPIER_GONE, COPIER_NONE, COPIER_WAITED_FOR, INLINE_ARGS, READY, SLOTS, UpSide,
};
use crate::clock::{A_CENTURY, now_ns};
use crate::copier;
use crate::core::{Core, Inner, Locked, WhenFull};
use crate::costs;
use crate::error::{Error, Kind, Result};
use crate::gather::Gathered;
use crate::life::EndedBy;
use crate::page::PAGE_BYTES;
use crate::queue::{Obstacle, Waiting};
use crate::replica::Replica;

/// Most bytes of arguments a call takes.
pub const MAX_ARGS: usize = 64 * 1024;

impl Inner {
    /// Takes the snapshot and queues the call.
    pub fn submit(self: &Arc<Inner>, areas: &[&Area], args: &[u8], options: &CallOptions) -> Result<Arc<Call>> {
        self.runtime.check_process()?;
        if args.len() > MAX_ARGS {
            return Err(Error::new(
                Kind::TooLarge,
                format!(
                    "{} bytes of arguments for orbit \"{}\": a call takes up to {MAX_ARGS}; put larger data into an \
                     area",
                    args.len(),
                    self.options.name
                ),
            ));
        }
        let function = options.function.map_or(0, |f| f as usize);
        let submitted_ns = now_ns();
        let deadline = options.deadline.or(self.options.deadline).map(|d| Instant::now() + d.min(A_CENTURY));
        let mut core = self.lock();
        // True if this attempt may drop every queued call.
        let mut dropping = false;
        // Until when it waits for an orbit that is down.
        let mut patience = None;
        loop {
            self.reap_locked(&mut core);
            match self.check_open(&core) {
                Err(e) if e.kind() == Kind::Down && !self.runtime.is_supervisor() => {
                    let until = *patience.get_or_insert_with(|| {
                        deadline.unwrap_or_else(|| Instant::now() + self.options.wait_while_down)
                    });
                    if Instant::now() >= until {
                        return Err(e);
                    }
                    core = self.wait_for_room(core, Some(until));
                    continue;
                }
                open => open?,
            }
            self.check_function(&core, function)?;
            if let Some(found) = self.coalesce(&core, function, args, options.coalesce) {
                return Ok(found);
            }
            let replaced = |w: &Waiting| options.coalesce == Coalesce::Replace && w.call.function == function;
            let taken = self.take_back(&mut core, |w| dropping || replaced(w));
            let made = if core.queue.len() as u32 >= SLOTS {
                Err(Obstacle::NoRoom(format!("{SLOTS} calls wait")))
            } else {
                let may_write = taken.log.is_none();
                self.snapshot_and_queue(
                    &mut core,
                    areas,
                    args,
                    function,
                    submitted_ns,
                    deadline,
                    may_write,
                    options.quiet,
                )
            };
            let full = match made {
                Ok(call) => {
                    for waiting in taken.calls.iter().filter(|w| !w.cancelled) {
                        self.finish(&mut core, &waiting.call, Outcome::Cancelled, waiting.call.submitted_ns);
                    }
                    self.cancel_locked(&mut core, |w| replaced(w) && w.call.number != call.number);
                    return Ok(call);
                }
                Err(obstacle) => obstacle,
            };
            self.put_back(&mut core, taken);
            let why = match full {
                Obstacle::Failed(e) => return Err(e),
                Obstacle::NoCopier => continue,
                Obstacle::NoRoom(why) => why,
            };
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::new(
                    Kind::TimedOut,
                    format!(
                        "orbit \"{}\" had no room for the call until its deadline: {why}; the call was not made",
                        self.options.name
                    ),
                ));
            }
            let drops = self.options.when_full == WhenFull::DropOldest;
            dropping = drops && !dropping;
            if dropping {
                continue;
            }
            // Calls whose snapshot a copier holds are not taken back: room comes when it is their
            // turn.
            let waits = match self.options.when_full {
                WhenFull::Block => true,
                WhenFull::Fail => false,
                WhenFull::DropOldest => {
                    self.cancel_locked(&mut core, |w| w.copier.is_some()) > 0 || core.queue.iter().any(|w| w.cancelled)
                }
            };
            if !waits {
                return Err(Error::new(
                    Kind::Full,
                    format!(
                        "orbit \"{}\" has no room for the call: {why}; make fewer calls at a time, or make the orbit \
                         with a larger log",
                        self.options.name
                    ),
                ));
            }
            core = self.wait_for_room(core, deadline);
        }
    }

    /// A waiting call that stands for this one, as asked.
    fn coalesce(&self, core: &Core, function: usize, args: &[u8], how: Coalesce) -> Option<Arc<Call>> {
        match how {
            Coalesce::Never | Coalesce::Replace => None,
            Coalesce::SkipIfAny => core.queue.iter().find(|w| !w.cancelled).map(|w| w.call.clone()),
            Coalesce::SkipIfSame => core
                .queue
                .iter()
                .find(|w| !w.cancelled && w.call.function == function && self.has_args(w, args))
                .map(|w| w.call.clone()),
        }
    }

    /// Whether a waiting call has these arguments. Read back from *down*, which only main writes;
    /// where they lie, main knows itself.
    fn has_args(&self, waiting: &Waiting, args: &[u8]) -> bool {
        let slot = &self.down.slots[(waiting.call.number & (SLOTS - 1)) as usize];
        if waiting.args_len != args.len() {
            return false;
        }
        if args.len() <= INLINE_ARGS {
            return args.iter().zip(&slot.args).all(|(a, b)| *a == b.load(Ordering::Relaxed));
        }
        // Long arguments are the last record of the call's part of the log.
        let bytes = self.down.log_bytes();
        let end = waiting.log_end as usize;
        let offset = (end - args.len().next_multiple_of(16)) & (bytes - 1);
        // SAFETY: the record lies in one piece inside the log, which only main writes, under the
        // lock held now.
        let there = unsafe { std::slice::from_raw_parts(self.down.log().add(offset), args.len()) };
        there == args
    }

    /// Takes the snapshot, fills the slot and hands the call over; or leaves everything as it was,
    /// with what was on its way owed again. `may_write`: replicas may be written while the orbit is
    /// idle; not if calls taken back may be put back.
    #[expect(clippy::too_many_arguments, reason = "what a call is made of")]
    fn snapshot_and_queue(
        self: &Arc<Inner>,
        core: &mut Core,
        areas: &[&Area],
        args: &[u8],
        function: usize,
        submitted_ns: u64,
        deadline: Option<Instant>,
        may_write: bool,
        quiet: bool,
    ) -> std::result::Result<Arc<Call>, Obstacle> {
        let number = core.queue.next_number();
        let slot = &self.down.slots[(number & (SLOTS - 1)) as usize];
        let log_start = core.queue.log_head();
        let idle = may_write && core.queue.is_empty() && core.life.process().is_some();
        let mut gathered = Gathered::default();
        let mut no_copier = false;
        let settled = self.settle_shared(core, areas, quiet).map_err(Obstacle::from);
        let attached = settled.and_then(|()| self.attach_new(core, areas, may_write));
        let ready = attached.and_then(|()| self.gather(core, areas, args, idle, &mut gathered)).and_then(|()| {
            if gathered.parts.is_empty() {
                slot.copier.store(COPIER_NONE, Ordering::Relaxed);
                return Ok(None);
            }
            slot.copier.store(COPIER_WAITED_FOR, Ordering::Relaxed);
            let Some(process) = core.life.process() else {
                let why = "the orbit is down, and the snapshot too large for its log";
                return Err(Error::new(Kind::Down, why).into());
            };
            let turn = if idle { None } else { Some(number) };
            let began = Instant::now();
            let first = self.runtime.config.killed_first;
            // SAFETY: the parts lie in areas and aliases that this process maps now; the copier has
            // its own copies.
            let started = unsafe { copier::start(&gathered.parts, slot, &process.up, turn, first) };
            no_copier = started.is_err();
            let started = started?;
            costs::cloned(began.elapsed());
            Ok(Some(started))
        });
        let copier = match ready {
            Ok(copier) => copier,
            Err(obstacle) => {
                let mut main_copies = false;
                let had_no_copier = |r: &&mut Replica| gathered.held.iter().any(|held| held.area() == r.area.id());
                for replica in core.replicas.iter_mut().filter(had_no_copier) {
                    if no_copier && replica.area.asked_engine() == Engine::Auto {
                        replica.copier_failed();
                        main_copies = true;
                    }
                }
                self.rewind_log(core, log_start);
                slot.copier.store(COPIER_NONE, Ordering::Relaxed);
                return Err(if main_copies { Obstacle::NoCopier } else { obstacle });
            }
        };
        if args.len() <= INLINE_ARGS {
            for (to, from) in slot.args.iter().zip(args) {
                to.store(*from, Ordering::Relaxed);
            }
        }
        slot.call.store(number, Ordering::Relaxed);
        slot.function.store(function as u64, Ordering::Relaxed);
        slot.args_len.store(args.len() as u32, Ordering::Relaxed);
        slot.log_start.store(log_start, Ordering::Relaxed);
        slot.log_end.store(core.queue.log_head(), Ordering::Relaxed);
        slot.state.store(READY, Ordering::Relaxed);
        slot.attach.store(core.queue.take_attached(), Ordering::Relaxed);
        slot.submitted_ns.store(submitted_ns, Ordering::Relaxed);
        core.stats.copiers += u64::from(copier.is_some());
        core.stats.calls += 1;
        core.stats.pages += gathered.pages.get() as u64;
        let call = Arc::new(Call::new(number, function, submitted_ns, deadline));
        let log_end = core.queue.log_head();
        let (held, pins) = (gathered.held, gathered.pins);
        let args_len = args.len();
        if copier.is_some() {
            self.recheck_by(Instant::now() + COPIER_CHECK_INTERVAL);
        }
        core.queue.push(Waiting { call: call.clone(), log_end, args_len, copier, held, pins, cancelled: false });
        self.hand_over(core, number.wrapping_add(1));
        self.status.call_submitted(core.queue.len() as u32, gathered.pages.get() as u64);
        if let Some(deadline) = deadline {
            self.recheck_by(deadline);
        }
        Ok(call)
    }

    /// Tells the orbit how far calls are handed over.
    #[inline(always)]
    pub fn hand_over(&self, core: &mut Core, submitted: u32) {
        core.queue.set_submitted(submitted);
        // SeqCst: the orbit stores `asleep` and then reads this; here it is the other way round.
        self.down.submitted.store(submitted, Ordering::SeqCst);
        if let Some(process) = core.life.process()
            && process.up.asleep.load(Ordering::SeqCst) != 0
        {
            futex::wake(&self.down.submitted, 1);
        }
    }

    /// Has the supervisor check the calls again at this time, at the latest.
    pub fn recheck_by(&self, when: Instant) {
        let left = when.saturating_duration_since(Instant::now());
        let at = now_ns().saturating_add(left.as_nanos() as u64);
        self.next_deadline.fetch_min(at, Ordering::Relaxed);
        self.runtime.wake_by(at);
    }

    /// Sleeps until the orbit has completed a call, or its state has changed, or the deadline has
    /// come.
    fn wait_for_room<'a>(&'a self, core: Locked<'a>, deadline: Option<Instant>) -> Locked<'a> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let at_most = left.unwrap_or(Duration::MAX).min(Duration::from_millis(50));
        let up = core.life.up();
        let before = core.queue.completed();
        drop(core);
        match up {
            Some(up) => self.sleep_on(&up, before, at_most),
            None => self.wait_for_change(at_most),
        }
        self.lock()
    }

    fn sleep_on(&self, up: &UpSide, seen: u32, at_most: Duration) {
        self.down.waiters.fetch_add(1, Ordering::SeqCst);
        if up.completed.load(Ordering::SeqCst) == seen {
            let _ = futex::wait(&up.completed, seen, Some(at_most));
        }
        self.down.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until `done` says so; polls briefly, then sleeps.
    pub fn wait(&self, until: Option<Instant>, mut done: impl FnMut() -> bool) -> Result<()> {
        if done() {
            return Ok(());
        }
        self.runtime.check_process()?;
        let spin = Duration::from_micros(u64::from(self.down.spin_us.load(Ordering::Relaxed)).min(20));
        let began = Instant::now();
        loop {
            let (up, seen) = {
                let mut core = self.lock();
                self.reap_locked(&mut core);
                if done() {
                    self.merge_if_alone(&core);
                    return Ok(());
                }
                (core.life.up(), core.queue.completed())
            };
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return Ok(());
            }
            let slice = until.map_or(MAX_SLEEP, |until| (until - now).min(MAX_SLEEP));
            let Some(up) = up else {
                self.wait_for_change(slice.min(Duration::from_millis(20)));
                continue;
            };
            while began.elapsed() < spin && up.completed.load(Ordering::Acquire) == seen {
                for _ in 0..16 {
                    std::hint::spin_loop();
                }
            }
            if up.completed.load(Ordering::Acquire) == seen {
                self.sleep_on(&up, seen, slice);
                if now.elapsed() >= MAX_SLEEP {
                    // An orbit that has scribbled over its own `asleep` word may have missed its
                    // wake-up.
                    futex::wake(&self.down.submitted, 1);
                }
            }
        }
    }

    /// Takes what the orbit has completed and pushed.
    pub fn reap(&self) {
        if self.runtime.check_process().is_ok() {
            self.reap_locked(&mut self.lock());
        }
    }

    pub fn reap_locked(&self, core: &mut Core) {
        let Some(process) = core.life.process().filter(|p| p.ended_by != EndedBy::Nonsense) else { return };
        let nothing_new = process.up.completed.load(Ordering::Acquire) == core.queue.completed();
        if nothing_new && !core.queue.has_updates(&process.up) {
            return;
        }
        let up = process.up.clone();
        if let Err(nonsense) = self.take_answers(core, &up) {
            self.break_off(core, nonsense);
        }
    }

    fn take_answers(&self, core: &mut Core, up: &UpSide) -> std::result::Result<(), Nonsense> {
        // The count of calls first: the updates of a call are in the ring before the call is
        // counted.
        let count = core.queue.newly_completed(up)?;
        // What nobody pulls blocks the task, and not more and more of main's memory. The ring's
        // last rest comes with the call's end all the same.
        let may_take = count > 0 || !core.queue.has_updates(up) || core.queue.waiting_bytes() < MOST_WAITING_BYTES;
        let updates = if may_take { core.queue.updates(up, &self.down)? } else { Vec::new() };
        for (call, update) in updates {
            let at = call.wrapping_sub(core.queue.completed()) as usize;
            match (update, core.queue.get(at)) {
                (Ok(update), Some(waiting)) => {
                    core.stats.updates += 1;
                    waiting.call.add_update(update, &mut core.wakers);
                }
                _ => core.stats.bad_updates += 1,
            }
        }
        for _ in 0..count {
            let Some((mut waiting, ending)) = core.queue.pop_completed(up)? else { break };
            self.release_copier(core, &mut waiting);
            let outcome = match ending.value {
                Some(value) if !waiting.cancelled => Outcome::Returned(value),
                _ => Outcome::Cancelled,
            };
            let returned = matches!(outcome, Outcome::Returned(_));
            if returned {
                core.life.note_return();
            }
            self.finish(core, &waiting.call, outcome, ending.at);
            if returned {
                core.queue.note_spent(waiting.call);
            }
        }
        // Waking nobody is a system call too.
        if count > 0 && core.waiting_for_change > 0 {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Ends the copier of a call that has ended; what it held is owed again if it did not write all
    /// of it.
    pub fn release_copier(&self, core: &mut Core, waiting: &mut Waiting) {
        let Some(copier) = waiting.copier.take() else { return };
        let slot = &self.down.slots[(waiting.call.number & (SLOTS - 1)) as usize];
        let state = slot.copier.swap(COPIER_NONE, Ordering::AcqRel);
        let done = state == COPIER_DONE;
        if !done {
            copier.kill();
        }
        for held in waiting.held.drain(..) {
            if let Some(replica) = core.replicas.iter_mut().find(|r| r.area.id() == held.area()) {
                let used = replica.area.used_pages();
                match state {
                    COPIER_DONE => replica.copier_done(),
                    COPIER_GONE => replica.copier_failed(),
                    _ => {}
                }
                if done && used > replica.mapped && !replica.is_sparse(used) {
                    // The copier filled the pages through its own page tables; main's alias has
                    // them still to come.
                    replica.mapped = used;
                    if let Some(alias) = &replica.alias {
                        self.runtime.populate(alias.clone(), used.bytes(PAGE_BYTES).get());
                    }
                }
            }
            if done {
                held.written();
            }
        }
        self.runtime.bury(copier);
    }

    /// Gives a call its outcome. `at` is when it ended, as nanoseconds of CLOCK_MONOTONIC; the
    /// orbit's word is taken for it within reason.
    pub fn finish(&self, core: &mut Core, call: &Call, outcome: Outcome, at: u64) {
        if call.is_done() {
            return;
        }
        match outcome {
            Outcome::Returned(_) => self.status.call_done(at.min(now_ns()).saturating_sub(call.submitted_ns)),
            Outcome::TimedOut(_) => self.status.timed_out(),
            _ => self.status.calls_lost(1),
        }
        if !matches!(outcome, Outcome::Returned(_)) {
            core.stats.failed += 1;
        }
        // Whoever is notified of a crash finds its names there; whoever waits need not.
        let was_watched = match outcome.crash().and_then(Crash::awaited_names) {
            None => call.finish(outcome, &mut core.wakers),
            Some(names) => {
                let mut notice = Notice::default();
                let was_watched = call.finish_unnoticed(outcome, &mut notice);
                self.runtime.notice_once_named(names, notice);
                was_watched
            }
        };
        if was_watched {
            self.down.notify.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// One more call whose end the supervisor must hear of.
    pub fn notify_more(&self) {
        self.down.notify.fetch_add(1, Ordering::SeqCst);
    }

    /// Cancels waiting calls that have not begun; returns how many.
    pub fn cancel(&self, which: impl Fn(&Waiting) -> bool) -> usize {
        if self.runtime.check_process().is_err() {
            return 0;
        }
        let mut core = self.lock();
        self.reap_locked(&mut core);
        self.cancel_locked(&mut core, which)
    }

    pub fn cancel_args(&self, args: &[u8]) -> usize {
        self.cancel(|waiting| self.has_args(waiting, args))
    }

    pub fn cancel_locked(&self, core: &mut Core, which: impl Fn(&Waiting) -> bool) -> usize {
        self.skip(core, which, Outcome::Cancelled)
    }

    /// Has waiting calls that have not begun skipped, with this outcome.
    fn skip(&self, core: &mut Core, which: impl Fn(&Waiting) -> bool, outcome: Outcome) -> usize {
        let up = core.life.up();
        let mut cancelled = Vec::new();
        let completed = core.queue.completed();
        for (at, waiting) in core.queue.iter_mut().enumerate() {
            if waiting.cancelled || !which(waiting) {
                continue;
            }
            let number = waiting.call.number;
            let slot = &self.down.slots[(number & (SLOTS - 1)) as usize];
            // The orbit stores `begun` and then reads `state`; here it is the other way round,
            // so one of both sees the other. If both do, the orbit waits for what main makes of it.
            slot.state.store(ASKED, Ordering::SeqCst);
            let begun = up.as_ref().map_or(completed, |up| up.begun.load(Ordering::SeqCst));
            if begun.wrapping_sub(completed) as usize > at {
                slot.state.store(READY, Ordering::SeqCst);
                continue;
            }
            slot.state.store(CANCELLED, Ordering::SeqCst);
            waiting.cancelled = true;
            cancelled.push(waiting.call.clone());
        }
        for call in &cancelled {
            self.finish(core, call, outcome.clone(), call.submitted_ns);
        }
        cancelled.len()
    }

    /// Ends calls that are past their deadline: one that waits is skipped, the one whose turn it is
    /// ends with its orbit's process; without a process all of them wait. A call whose copier has
    /// died is given up.
    pub fn check_calls(&self) {
        let mut core = self.lock();
        self.next_deadline.store(u64::MAX, Ordering::Relaxed);
        self.reap_locked(&mut core);
        let now = Instant::now();
        let late = |call: &Call| call.deadline.is_some_and(|d| d <= now);
        let may_run = core.life.process().is_some();
        let head_is_late = may_run && core.queue.front().is_some_and(|w| !w.cancelled && late(&w.call));
        let head = core.queue.completed();
        self.skip(&mut core, |w| !(may_run && w.call.number == head) && late(&w.call), Outcome::TimedOut(None));
        let mut ends_by = None;
        match core.life.condemned() {
            // This check has come for another reason.
            Some(EndedBy::Stuck { killed_at } | EndedBy::Deadline { killed_at }) if now < killed_at => {
                ends_by = Some(killed_at);
            }
            // It may have been killed in vain.
            Some(doomed) => self.end_process(&mut core, doomed),
            None if head_is_late => {
                let killed_at = now + LATE_LEAVES_STACK_WITHIN;
                self.end_leaving_stack(&mut core, EndedBy::Deadline { killed_at }, killed_at);
                ends_by = Some(killed_at);
            }
            None => {}
        }
        // Of those that are late: one that began just now, for it was no more to be skipped and not
        // yet the head.
        let again = |d: Instant| if d > now { Some(d) } else { (!head_is_late).then(|| now + LATE_CALL_RECHECK_AFTER) };
        let waiting = core.queue.iter().filter(|w| !w.cancelled);
        let mut next = waiting.filter_map(|w| w.call.deadline).filter_map(again).chain(ends_by).min();
        for waiting in core.queue.iter_mut() {
            if let Some(copier) = &mut waiting.copier {
                copier.give_up_if_dead(&self.down.slots[(waiting.call.number & (SLOTS - 1)) as usize]);
                next = Some(next.unwrap_or(now + COPIER_CHECK_INTERVAL).min(now + COPIER_CHECK_INTERVAL));
            }
        }
        if let Some(next) = next {
            let at = now_ns().saturating_add((next - now).as_nanos() as u64);
            self.next_deadline.fetch_min(at, Ordering::Relaxed);
        }
    }
}

/// How long the orbit of a late call may take to leave its call stack before it is killed.
const LATE_LEAVES_STACK_WITHIN: Duration = Duration::from_secs(1);
/// How soon the supervisor checks again at a late call that it could neither skip nor end.
const LATE_CALL_RECHECK_AFTER: Duration = Duration::from_millis(1);
/// How often the supervisor checks whether copiers live, while calls wait for them.
const COPIER_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest sleep before a waiter checks again whether all is well.
const MAX_SLEEP: Duration = Duration::from_millis(100);
