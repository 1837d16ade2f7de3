//! The keeper of one program: when a checkpoint is taken, what is done at a crash, what is
//! reported.
//!
//! The program runs untraced. The keeper sleeps until a checkpoint is due, the program rings (a
//! crash, a full log, the end of a replay), a signal comes, or the program exits.

mod hang;
mod recovery;

use crate::arguments::Settings;
use crate::attach::{Attached, FATAL};
use crate::bell::Bell;
use crate::board::{Board, Pauses, Row};
use crate::desk::Counter;
use crate::early::{self, Early};
use crate::error::Error;
use crate::family::Family;
use crate::kept::{Kept, Policy, Taken};
use crate::ladder::{Bounds, Ladder, Rung};
use crate::limits;
use crate::place;
use crate::program::{self, End, Ended, Kind, Program};
use crate::quiet::Quiet;
use crate::report::{Event, Figures, Reporter};
use crate::rest::Rest;
use crate::restart;
use crate::shared::{CrashReport, Shared};
use crate::signals::Signals;
use crate::stack::Stacks;
use graft::Process;
use orbit_family as family;
use orbit_linux::clock::{self, thread_cpu_ns};
use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a program may take to reach a safe point once it was asked; then the checkpoint is put
/// off.
const SAFE_POINT_LIMIT: Duration = Duration::from_millis(30);
/// How long after a recovery the next checkpoint may come at the earliest: corruption shows soon.
const SETTLED: Duration = Duration::from_millis(25);
/// And how much later it comes at the latest.
const AFTER_RECOVERY: Duration = Duration::from_millis(100);
/// Where each checkpoint copies all memory: pauses from one to the next.
const PAUSES_APART: u32 = 50;
/// How often that is seen to.
const LOG_STEP: Duration = Duration::from_millis(25);
/// Until another checkpoint is due in request mode.
const FOR_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// How often it is tried to take the first checkpoint.
const BEGIN_STEP: Duration = Duration::from_millis(50);
/// How long the start of a program whose calls are logged may take: then the first checkpoint is
/// taken anyway.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a program may take to load the library of its side.
const LOAD_LIMIT: Duration = Duration::from_secs(20);
/// How often it is seen to whether children still live after the program has exited.
const CHILD_STEP: Duration = Duration::from_millis(50);
/// How often checkpoints are published at most; crashes are each time.
const PUBLISH_STEP: Duration = Duration::from_millis(200);

/// What starting the bell is called where it fails.
const BELL: &str = "making the thread that waits for the program";

/// See the module's head.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    settings: Arc<Settings>,
    /// `None`: a child of a kept program, or one that ran already.
    program: Option<Program>,
    /// One that ran already.
    attached: Option<Attached>,
    /// Whether the program's loader is to load the library of its side, as far as is known.
    has_loader: bool,
    family: Option<Family>,
    /// Until it runs.
    bell: Option<Bell>,
    unkept_children: u32,
    kept: Kept,
    ladder: Ladder,
    reporter: Reporter,
    interval: Duration,
    figures: Figures,
    pauses: Pauses,
    last_pause: Duration,
    /// Made with the first checkpoint.
    stacks: Option<Stacks>,
    board: Board,
    published: Instant,
    /// Whether there are figures that are not shown yet.
    is_unpublished: bool,
    replay: Option<recovery::Replay>,
    /// The crash from which it is not recovered yet, and since when.
    crash: Option<(CrashReport, Instant)>,
    /// The stretch of the log that replays have shown: see [`crate::ladder::Facts::is_shown`].
    shown: (u64, u64),
    /// The signal of a crash that was given up.
    given_up: Option<i32>,
    last_warning: String,
    /// See [`Shared::images`].
    image: u32,
    /// Limits that were said.
    said: HashSet<String>,
    /// Checkpoints that the program has asked for, up to the newest.
    wishes: u32,
    started: Instant,
    log_lost: u32,
    early: Early,
    quiet: Quiet,
    rest: Rest,
    /// How long the environment stays changed.
    changed_until: Option<Instant>,
    hung: Option<hang::Hung>,
    /// See [`Shared::failed_waits`].
    failed_waits: u32,
}

impl Keeper {
    /// Starts the program. `restarts`: how often it was started before.
    pub fn start(settings: &Arc<Settings>, mut reporter: Reporter, restarts: u64) -> Result<Keeper, Error> {
        limits::forbidden_here().map_err(Error::Unkept)?;
        let shared = Shared::new(settings.log_bytes, settings.handlers).map_err(Error::io("making shared memory"))?;
        if let Some(rules) = &settings.rules {
            shared.set_rules(rules, rules.processes.serves(true));
        }
        let shared = Arc::new(shared);
        // Its first child may come before anything else here.
        let family = settings.family.then(|| Family::new(&shared, settings)).transpose()?;
        // Also its first check whether the keeper lives.
        let bell = Bell::start(&shared).map_err(Error::io(BELL))?;
        let mark = settings.restarts.as_ref().and_then(|restarts| restarts.mark());
        let program = Program::start(&settings.command, &shared, mark)?;
        let process = Process::find(program.pid())?;
        let kind = program::kind(program.pid());
        let attached = match kind {
            Kind::Dynamic | Kind::Gone => None,
            // It loads no library: the handlers are put into it, as into one that runs already.
            Kind::Static if !shared.has_log() && family.is_none() => match Attached::new(&process, &shared) {
                Err(_) if program::kind(program.pid()) == Kind::Gone => None,
                attached => Some(attached?),
            },
            Kind::Static => {
                reporter.warn("it is linked statically: without --log and --family it would be kept");
                None
            }
            Kind::OtherUser => {
                reporter.warn("it is not kept: it is set-user-ID or set-group-ID, which loads no library of others");
                None
            }
        };
        let mut keeper = Keeper::new(process, shared, settings, reporter);
        (keeper.program, keeper.family, keeper.bell, keeper.attached) = (Some(program), family, Some(bell), attached);
        keeper.has_loader = matches!(kind, Kind::Dynamic | Kind::Gone);
        keeper.figures.restarts = restarts;
        Ok(keeper)
    }

    /// For a child of a kept program, which has taken `shared`.
    pub fn of_child(
        process: Process,
        shared: Arc<Shared>,
        settings: &Arc<Settings>,
        reporter: Reporter,
    ) -> Result<Keeper, Error> {
        // Before its family, for which it waits: from then on it sees that its keeper lives.
        let bell = Bell::start(&shared).map_err(Error::io(BELL))?;
        let family = Family::new(&shared, settings)?;
        let mut keeper = Keeper::new(process, shared, settings, reporter);
        (keeper.family, keeper.bell) = (Some(family), Some(bell));
        Ok(keeper)
    }

    /// For a program that runs already.
    pub fn attach(pid: i32, settings: &Arc<Settings>, mut reporter: Reporter) -> Result<Keeper, Error> {
        let process = Process::find(pid)?;
        let shared = Shared::new(0, settings.handlers).map_err(Error::io("making shared memory"))?;
        let attached = Attached::new(&process, &shared)?;
        if !attached.left.is_empty() {
            let names: Vec<String> = attached.left.iter().map(|signal| place::signal_name(*signal)).collect();
            reporter.warn(format!("it handles {} itself: these are left to it", names.join(", ")));
        }
        let mut keeper = Keeper::new(process, Arc::new(shared), settings, reporter);
        keeper.attached = Some(attached);
        Ok(keeper)
    }

    fn new(process: Process, shared: Arc<Shared>, settings: &Arc<Settings>, mut reporter: Reporter) -> Keeper {
        reporter.set_pid(process.pid());
        let policy = Policy {
            generations: settings.generations,
            interval: settings.interval,
            memory: settings.memory,
            exactness: settings.exactness,
        };
        Keeper {
            shared,
            settings: Arc::clone(settings),
            program: None,
            attached: None,
            has_loader: false,
            family: None,
            bell: None,
            unkept_children: 0,
            kept: Kept::new(process, policy),
            ladder: Ladder::new(Bounds { rungs: settings.rungs.clone(), ..Bounds::default() }),
            reporter,
            interval: settings.interval,
            figures: Figures::default(),
            pauses: Pauses::default(),
            last_pause: Duration::ZERO,
            stacks: None,
            board: settings.board.clone(),
            published: Instant::now(),
            is_unpublished: false,
            replay: None,
            crash: None,
            shown: (0, 0),
            given_up: None,
            last_warning: String::new(),
            image: 0,
            said: HashSet::new(),
            wishes: 0,
            started: Instant::now(),
            log_lost: 0,
            early: Early::default(),
            quiet: Quiet::default(),
            rest: Rest::default(),
            changed_until: None,
            hung: None,
            failed_waits: 0,
        }
    }

    /// Keeps the program until it exits.
    pub fn run(mut self, signals: Option<&Signals>) -> Result<Ended, Error> {
        let bell = match self.bell.take() {
            Some(bell) => bell,
            None => Bell::start(&self.shared).map_err(Error::io(BELL))?,
        };
        let orders = self.settings.desk.open(self.kept.process().pid());
        let orders = orders.inspect_err(|error| hang::unreachable(&mut self.reporter, error)).ok();
        let mut due = Instant::now();
        // Before this no checkpoint is taken early.
        let mut settled = due;
        let mut is_known = false;
        let reaps = self.program.is_some() && family::gets_orphans();
        loop {
            // A descriptor of -1 is left out.
            let signals_fd = signals.map_or(-1, |signals| signals.as_fd().as_raw_fd());
            let handle = self.kept.process().handle().as_raw_fd();
            let orders_fd = orders.as_ref().map_or(-1, |orders| orders.as_fd().as_raw_fd());
            let moves = self.quiet.due();
            // It has rung once, and is armed with the next checkpoint.
            let witness = self.kept.witness().filter(|_| moves.is_none());
            let witness_fd = witness.map_or(-1, |witness| witness.bell().as_raw_fd());
            let fds = [handle, bell.as_fd().as_raw_fd(), signals_fd, orders_fd, witness_fd];
            let mut fds = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            let next = [moves, self.rest.due()].into_iter().flatten().fold(due, Instant::min);
            let pause = next.saturating_duration_since(Instant::now());
            let pause = if self.shared.has_log() { pause.min(LOG_STEP) } else { pause };
            let pause = if self.is_unpublished { pause.min(PUBLISH_STEP) } else { pause };
            orbit_linux::poll::poll(&mut fds, Some(pause)).map_err(Error::io("waiting"))?;
            for signal in signals.map(Signals::take).unwrap_or_default() {
                self.program.iter().for_each(|program| program.signal(signal));
                if matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT)
                    && self.program.is_none()
                    && let Some(attached) = self.attached.take()
                {
                    attached.leave(self.kept.process())?;
                    self.reporter.note("left: it continues, unkept");
                    return Ok(Ended { end: Some(End { code: 0, signal: None }), again: false });
                }
            }
            if reaps {
                family::reap(|pid| self.program.as_ref().is_some_and(|program| program.pid() == pid));
            }
            if let Some(end) = self.has_exited() {
                return Ok(self.exited(end, signals));
            }
            if self.is_unpublished && self.published.elapsed() >= PUBLISH_STEP {
                self.publish();
            }
            let rang = bell.drain();
            if self.is_another_program() || (is_known && !self.shared.is_ready()) {
                // From an exec on until that program has a checkpoint of its own.
                (is_known, self.started) = (false, Instant::now());
            }
            self.children()?;
            if let Some(crash) = self.shared.crash() {
                self.recover(&crash);
                (settled, due) = self.soon(due);
                continue;
            }
            self.shared.prepare_log();
            self.hung_again();
            self.limit_replay();
            if self.waits_failed() {
                (settled, due) = self.soon(due);
                continue;
            }
            if let Some(order) = orders.as_ref().and_then(Counter::next) {
                self.ordered(order);
                (settled, due) = self.soon(due);
                continue;
            }
            if self.changed_until.is_some_and(|end| end < Instant::now()) && self.replay.is_none() {
                self.changed_until = None;
                self.shared.change_environment(false);
            }
            let is_request_mode = self.shared.has_moments();
            if is_known && is_request_mode {
                // What is before the request is not needed any more.
                self.shared.set_oldest(self.shared.moment());
            }
            self.rest.look(|| clock::cpu_ns_of(self.kept.process().pid()), Instant::now());
            let has_moved = fds[4].revents & libc::POLLIN != 0;
            let is_quiet = self.has_fallen_quiet(has_moved);
            let is_early = is_known
                && !is_request_mode
                && Instant::now() >= settled
                && (self.is_worth_a_checkpoint() || is_quiet && self.early.may(Instant::now()));
            if !is_known && !self.has_begun() {
                due = Instant::now() + BEGIN_STEP;
            } else if is_known && !is_early && self.is_superfluous() {
                let step = if self.shared.has_log() { BEGIN_STEP.min(self.interval) } else { self.interval };
                due = due.max(Instant::now() + step);
            } else if Instant::now() >= due || self.shared.wishes() != self.wishes || is_early || (rang && !is_known) {
                let taken = self.checkpoint();
                if taken && !is_known {
                    is_known = true;
                    self.shared.set_kept(true);
                    self.publish();
                    self.stacks = Some(Stacks::new(self.kept.process().pid(), &self.reporter));
                    self.say_limits();
                    if let Some(why) = self.kept.lacks_witness() {
                        self.reporter.warn(format!("without --log a crash ends it, whatever it has done: {why}"));
                    }
                    if self.kept.copies_all() {
                        self.reporter.warn(format!(
                            "a seccomp filter forbids userfaultfd in it, or pidfd_getfd here: each checkpoint copies \
                             all its memory, {} MiB now; allow both to have only what was written copied",
                            self.kept.bytes() >> 20
                        ));
                    }
                    self.reporter.report(&Event::Kept { log: self.shared.has_log() });
                }
                let next = match is_known {
                    // One for life.
                    true if self.shared.has_moments() => FOR_LIFE,
                    true if self.kept.copies_all() => self.interval.max(self.last_pause * PAUSES_APART),
                    true => self.interval,
                    false => self.interval.min(BEGIN_STEP),
                };
                due = Instant::now() + next;
            }
            if !is_known && self.started.elapsed() > LOAD_LIMIT {
                is_known = true;
                self.reporter.warn(
                    "it is not kept: it has not loaded the library of its side; is it linked statically, set-user-ID, \
                     or started by a script?",
                );
            }
        }
    }

    /// Whether there is another program in the process than before; then all is begun anew.
    fn is_another_program(&mut self) -> bool {
        let image = self.shared.images();
        if image == self.image || !self.shared.is_ready() {
            return false;
        }
        self.kept.begin_anew(image);
        self.shared.set_kept(false);
        let is_first = std::mem::replace(&mut self.image, image) == 0;
        if !is_first {
            self.ladder = Ladder::new(Bounds { rungs: self.settings.rungs.clone(), ..Bounds::default() });
            (self.replay, self.crash, self.stacks, self.changed_until) = (None, None, None, None);
            self.said.clear();
            self.reporter.note(format!("executes {}", place::program_of(self.kept.process().pid())));
        }
        !is_first
    }

    /// After a recovery: from when a checkpoint may come, and when one is due. Soon, since until
    /// then each further crash has to replay more; but in request mode there is one for life.
    fn soon(&self, due: Instant) -> (Instant, Instant) {
        let settled = Instant::now() + SETTLED.min(self.interval);
        let due = if self.shared.has_moments() { due } else { due.clamp(settled, settled + AFTER_RECOVERY) };
        (settled, due)
    }

    /// Whether it has exited, and if so its status, where that can be known.
    fn has_exited(&mut self) -> Option<Option<End>> {
        match &mut self.program {
            Some(program) => program.exited().map(|status| Some(status.into())),
            None => self.kept.process().has_exited().then(|| program::end_of_zombie(self.kept.process().pid())),
        }
    }

    /// Keeps its children, or says that they are not kept.
    fn children(&mut self) -> Result<(), Error> {
        if let Some(family) = &mut self.family {
            family.adopt(&self.shared, &self.settings, &mut self.reporter)?;
        }
        let children = self.shared.unkept_children();
        if children != 0 && self.unkept_children == 0 && self.family.is_none() {
            self.reporter.warn(
                "it forks: its children are not kept, a crash of one is not recovered from; --family keeps them too",
            );
        }
        self.unkept_children = children;
        Ok(())
    }

    /// Whether the first checkpoint may be taken. The start of a server is not logged well: it
    /// reads its settings by stdio.
    fn has_begun(&self) -> bool {
        let since = self.started.elapsed();
        if self.shared.has_moments() {
            let (_, ever) = self.shared.at_moment();
            if !ever && since > START_LIMIT && self.shared.has_waited() {
                // It serves no requests, as the parent of servers.
                self.shared.serves_nothing();
            }
            return ever;
        }
        // It runs already, or says itself that this is a good moment.
        if (self.attached.is_some() && self.program.is_none()) || self.shared.wishes() != self.wishes {
            return true;
        }
        match self.shared.has_log() {
            true => self.shared.has_waited() || since > START_LIMIT,
            false => since >= self.interval,
        }
    }

    /// Says what a rollback does not bring back, each kind once.
    fn say_limits(&mut self) {
        let process = self.kept.process();
        let facts = limits::Facts::of(process.pid(), process.mappings().unwrap_or_default(), self.shared.has_log());
        for text in limits::sentences(&facts) {
            // Another number of the same is nothing new.
            let kind = text.replace(|c: char| c.is_ascii_digit(), "");
            if self.said.insert(kind) {
                self.reporter.limit(text);
            }
        }
    }

    /// Says, once each, which fatal signals do not come to the keeper any more.
    fn say_handlers(&mut self) {
        // Then they are the program's own again.
        if self.given_up.is_some() {
            return;
        }
        let pid = self.kept.process().pid();
        let left = self.attached.as_ref().map_or(&[][..], |attached| &attached.left);
        let lost: Vec<i32> = match self.shared.has_log() {
            true => {
                let caught = limits::caught_signals(pid);
                FATAL.into_iter().filter(|signal| caught & 1 << (signal - 1) == 0).collect()
            }
            false => {
                let ours = [self.shared.handler(), self.attached.as_ref().map(Attached::handler)];
                self.kept.replaced_handlers(&ours.into_iter().flatten().collect::<Vec<_>>())
            }
        };
        // Programs ignore SIGSYS for calls that an old kernel lacks.
        for signal in lost.into_iter().filter(|signal| !left.contains(signal) && *signal != libc::SIGSYS) {
            let name = place::signal_name(signal);
            let text = format!(
                "{name} does not come to the keeper: the program ignores it, or has set a handler by a call that \
                 does not pass it; a crash by {name} ends it as without a keeper"
            );
            if self.said.insert(text.clone()) {
                self.reporter.warn(text);
            }
        }
    }

    /// Whether another checkpoint would save nothing: no call was logged since the newest one (it
    /// waits, or it hangs, and then a checkpoint inside the hang would be of no use), or, without a
    /// log, it has not run.
    fn is_superfluous(&self) -> bool {
        if self.shared.wishes() != self.wishes {
            return false;
        }
        if !self.shared.has_log() {
            return self.rest.is_asleep(clock::cpu_ns_of(self.kept.process().pid()));
        }
        self.shared.is_logging() && self.shared.log_used_since(self.kept.newest_log()) == 0
    }

    /// Whether a replay from the newest checkpoint would be so long that an early one pays;
    /// whatever it costs when the log gets full.
    fn is_worth_a_checkpoint(&self) -> bool {
        let used = self.shared.log_used_since(self.kept.newest_log());
        used > self.shared.log_bytes() / 4
            || self.shared.is_log_wanted()
            || (used > early::LEAST_REPLAYED && self.early.may(Instant::now()))
    }

    /// Whether it has done something that others can see since the newest checkpoint, and nothing
    /// for a while; see [`Quiet`].
    fn has_fallen_quiet(&mut self, has_moved: bool) -> bool {
        let Some(witness) = self.kept.witness() else { return false };
        let now = Instant::now();
        if has_moved {
            self.quiet.moves(witness.read(), now);
        }
        self.quiet.look(|| witness.read(), now)
    }

    /// Takes a checkpoint, or puts it off.
    fn checkpoint(&mut self) -> bool {
        let wishes = self.shared.wishes();
        let mut used = thread_cpu_ns();
        let mut taken = self.kept.checkpoint(&self.shared);
        if matches!(taken, Ok(Taken::Unsafe)) && self.shared.has_log() {
            self.shared.ask();
            let end = Instant::now() + SAFE_POINT_LIMIT;
            while !self.shared.is_parked() && self.shared.crash().is_none() && Instant::now() < end {
                self.shared.wait_bell(self.shared.bell(), Duration::from_millis(1));
            }
            used = thread_cpu_ns();
            taken = self.kept.checkpoint(&self.shared);
            self.shared.release();
        }
        match taken {
            Ok(Taken::Checkpoint(figures)) => {
                self.quiet.begin();
                let now = Instant::now();
                self.rest.begin(now);
                let busy = Duration::from_nanos(thread_cpu_ns().saturating_sub(used));
                self.early.taken(busy + figures.pause, figures.pages, now);
                self.figures.checkpoints += 1;
                self.wishes = wishes;
                self.shared.grant(wishes);
                self.figures.pages += figures.pages as u64;
                self.figures.held_bytes = self.kept.bytes();
                self.pauses.add(figures.pause.as_secs_f64() * 1e6);
                self.last_pause = figures.pause;
                self.is_unpublished = true;
                self.say_handlers();
                let lost = self.shared.log_lost();
                if lost != self.log_lost {
                    self.log_lost = lost;
                    self.reporter.warn(
                        "the log was full before a checkpoint came, and began anew: raise --log-size or lower --every",
                    );
                }
                return true;
            }
            Ok(Taken::Unsafe | Taken::Dying) => self.figures.put_off += 1,
            // Dealt with by the loop, which the bell wakes.
            Ok(Taken::Crashed | Taken::NotReady) => {}
            Err(error) => {
                let text = format!("no checkpoint: {error}");
                // Its exit shows by itself.
                if !matches!(error, Error::Graft(graft::Error::Gone { .. })) && text != self.last_warning {
                    self.reporter.warn(text.clone());
                    self.last_warning = text;
                }
            }
        }
        false
    }

    /// Brings the figures up to date and has them shown.
    fn publish(&mut self) {
        (self.published, self.is_unpublished) = (Instant::now(), false);
        (self.figures.pause_p50_us, self.figures.pause_p99_us) = self.pauses.quantiles();
        (self.figures.transient, self.figures.deterministic) = self.ladder.causes();
        self.board.put(Row {
            pid: self.kept.process().pid(),
            name: self.reporter.program().to_owned(),
            mode: if self.shared.has_log() { "log" } else { "generic" }.to_owned(),
            is_kept: self.figures.checkpoints > 0,
            generations: self.kept.checkpoints(),
            figures: self.figures.clone(),
        });
    }

    /// The end that it would have had without a keeper. In a recovery, or after one that was given
    /// up half-way, it may die of another fatal signal than that of its crash.
    fn true_end(&mut self, end: End) -> End {
        if let Some(signal) = end.signal.filter(|signal| self.crash.is_some() && FATAL.contains(signal)) {
            let name = place::signal_name(signal);
            self.finish(Err(Error::Unkept(format!("it died of {name} while it was put back"))));
        }
        end.of_crash(self.given_up)
    }

    fn exited(&mut self, end: Option<End>, signals: Option<&Signals>) -> Ended {
        // Those that it has made right before its end, as a daemon's first process does.
        if let Err(error) = self.children() {
            self.reporter.warn(format!("its last children are not kept: {error}"));
        }
        let end = end.map(|end| self.true_end(end));
        match end {
            _ if self.figures.by_rung[rung_index(Rung::GiveUp)] > 0 => {}
            Some(End { signal: Some(libc::SIGKILL), .. }) => {
                self.reporter
                    .warn("it was killed by SIGKILL, by hand or for want of memory: that cannot be recovered from");
            }
            Some(End { signal: Some(signal), .. }) if FATAL.contains(&signal) && self.figures.checkpoints > 0 => {
                self.reporter.warn(format!(
                    "it died of {}, which has not come to the keeper: its own handler, set by a call that does not \
                     pass the keeper, or its mask, was in between",
                    place::signal_name(signal)
                ));
            }
            Some(End { code: code @ 1.., signal: None }) if self.has_loader && !self.shared.is_ready() => {
                self.reporter.warn(format!(
                    "it exited with status {code} before the library of its side came up in it: at once, or because \
                     its loader rejects that, as with another C library than glibc, or one older than this orbit was \
                     built with; such programs run only without orbit keep"
                ));
            }
            Some(End { code: code @ 1.., signal: None }) => {
                let text = format!("it exited of itself with status {code}: that is not recovered from");
                self.reporter.note(text);
            }
            _ => {}
        }
        self.publish();
        self.board.remove(self.kept.process().pid());
        let figures = self.figures.clone();
        self.reporter.report(&Event::Exited { status: end.map(|end| end.code), figures });
        let again = self.is_to_start_again(end, signals);
        // A daemon's first process exits early; the thread of each child ends with it.
        while self.family.as_ref().is_some_and(Family::lives) {
            std::thread::sleep(CHILD_STEP);
        }
        Ended { end, again }
    }

    /// Whether the program, which has ended, is to be started again; then nothing of it is left.
    fn is_to_start_again(&mut self, end: Option<End>, signals: Option<&Signals>) -> bool {
        let (Some(restarts), Some(program), Some(end)) = (&self.settings.restarts, &self.program, end) else {
            return false;
        };
        let gave_up = self.figures.by_rung[rung_index(Rung::GiveUp)] > 0;
        if !restart::is_due(end, signals.and_then(Signals::asked_to_end), gave_up) {
            return false;
        }
        let left = restarts.end_what_is_left(program.pid());
        if left > 0 {
            self.reporter.warn(format!("{left} processes that it made have not ended yet, though killed"));
        }
        true
    }
}

fn rung_index(rung: Rung) -> usize {
    match rung {
        Rung::Newest => 0,
        Rung::Older => 1,
        Rung::Environment => 2,
        Rung::Drop => 3,
        Rung::GiveUp => 4,
    }
}
