//! What the library keeps for the whole process: the window, the template, spares, the supervisor's
//! door, the list of orbits; and what becomes of it when the program forks.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use orbit_linux::rlimit::{self, Resource};
use orbit_linux::{eventfd, socket};

use crate::area;
use crate::call::Notice;
use crate::channel::{self, Channel, DownSide, UpSide};
use crate::copier::Copier;
use crate::core::Inner;
use crate::error::{Error, Kind, Result};
use crate::generation::generation;
use crate::limits::Room;
use crate::mains_shared::SharedMemory;
use crate::names::Names;
use crate::own::{self, Own};
use crate::per_process::{Inherit, PerProcess};
use crate::shared::Shared;
use crate::status::StatusPage;
use crate::template::{self, Template};
use crate::units::Bytes;
use crate::wire::Lines;
use crate::{limits, side, supervisor, wire};

/// How the library is set up. The default suits most programs.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) window: usize,
    pub(crate) spares: usize,
    pub(crate) spin: std::time::Duration,
    pub(crate) shared: SharedMemory,
    pub(crate) killed_first: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            window: 64 << 30,
            spares: 1,
            spin: std::time::Duration::from_micros(50),
            shared: SharedMemory::default(),
            killed_first: true,
        }
    }
}

impl Config {
    /// The default: a window of 64 GiB, one spare, 50 us of spin.
    pub fn new() -> Config {
        Config::default()
    }

    /// Address space to reserve for areas, in bytes. It costs no memory; less is taken where the
    /// kernel gives less.
    pub fn window(mut self, bytes: usize) -> Config {
        self.window = bytes;
        self
    }

    /// Processes cloned ahead of need (0 to 16), so that creating and restarting an orbit is a
    /// hand-over. Each costs the memory of a small process.
    pub fn spares(mut self, count: usize) -> Config {
        self.spares = count.min(16);
        self
    }

    /// What orbits have of memory that main shares with other processes. Default: they may read it.
    pub fn shared_memory(mut self, shared: SharedMemory) -> Config {
        self.shared = shared;
        self
    }

    /// Whether the kernel, when it is out of memory, is to kill orbits before any other process:
    /// their `oom_score_adj` is 1000 then. Default: yes. Where `/proc` does not let a process set
    /// it, it stays main's.
    pub fn killed_first(mut self, killed_first: bool) -> Config {
        self.killed_first = killed_first;
        self
    }

    /// How long an orbit whose calls come fast polls for the next one before it sleeps.
    /// 0: never; taken as 0 on a machine with one CPU.
    pub fn spin(mut self, spin: std::time::Duration) -> Config {
        self.spin = spin;
        self
    }
}

/// The log's size where nothing else is asked for, bytes.
pub(crate) const LOG_BYTES: usize = 1 << 20;

pub(crate) struct Runtime {
    pub config: Config,
    /// The process this was made in, as [`area::generation`] numbers it.
    generation: u64,
    template: Mutex<Option<Arc<Template>>>,
    spares: Mutex<Vec<Spare>>,
    /// Spares that were taken and are not in `orbits` yet. Raised under the lock of `spares`.
    becoming: AtomicU32,
    orbits: Mutex<Vec<Weak<Inner>>>,
    /// Copiers that have done their work or were killed, to be reaped.
    buried: Mutex<Vec<Copier>>,
    /// Replicas whose first so many bytes are to be mapped ahead of main's next writes.
    unmapped: Mutex<Vec<(Arc<Shared>, usize)>>,
    /// Notices of crashes whose names are on their way.
    unnamed: Mutex<Vec<(Arc<Names>, Notice)>>,
    /// The room that is left around main.
    pub room: Room,
    status: Mutex<StatusPage>,
    /// Wakes the supervisor.
    door: Mutex<Arc<Own>>,
    /// When the supervisor will wake by itself, as nanoseconds of CLOCK_MONOTONIC; `u64::MAX`: not.
    pub next_wake: AtomicU64,
    numbers: AtomicU64,
    /// Whether the library was shut down: no orbit is made any more. Set under the lock of
    /// `orbits`.
    closed: AtomicBool,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

/// No spares are made when fewer descriptors than this are left: orbits need them.
const DESCRIPTORS_TO_SPARE: u64 = 24;

static RUNTIME: PerProcess<Option<Arc<Runtime>>> = PerProcess::new();

/// What a forked child has of its parent's runtime names the parent's processes: it is left alone,
/// not dropped.
impl Inherit for Option<Arc<Runtime>> {
    fn inherit(&self) -> Self {
        None
    }
}

/// Sets the library up with the default configuration, if it is not yet. Best called early, while
/// the program has one thread and little memory: the template is a copy of main as it is now.
/// Thread-safe; a second call does nothing.
pub fn init() -> Result<()> {
    runtime().map(|_| ())
}

/// The same with a configuration of one's own. An error if the library is set up already.
pub fn init_with(config: Config) -> Result<()> {
    let mut slot = RUNTIME.lock().write().unwrap_or_else(|e| e.into_inner());
    if slot.is_some() {
        return Err(Error::new(
            Kind::Invalid,
            "the library is set up already: give it a configuration before the first area or orbit is made",
        ));
    }
    *slot = Some(Runtime::start(config)?);
    side::set_up(true);
    Ok(())
}

/// Ends all that the library keeps in this process: every orbit, as [`crate::Orbit::destroy`] does,
/// spares, the template, the supervisor's thread. Blocks until they have ended, for some
/// milliseconds.
///
/// Handles may still be held: calls on them fail with [`Kind::Gone`], futures have ended as
/// cancelled. Areas and their objects stay as they are. The next [`init`], or first use, sets the
/// library up anew; the window of address space stays. An orbit that another thread is making
/// meanwhile is ended as well. Where nothing is set up nothing is done.
///
/// # Errors
/// [`Kind::WrongSide`] in an orbit.
pub fn shutdown() -> Result<()> {
    if side::is_own_side() {
        return Err(Error::new(Kind::WrongSide, "an orbit cannot shut the library down: do it in main"));
    }
    let runtime = RUNTIME.lock().write().unwrap_or_else(|e| e.into_inner()).take();
    side::set_up(false);
    if let Some(runtime) = runtime {
        runtime.end();
    }
    Ok(())
}

/// The runtime of this process, set up if need be.
pub(crate) fn runtime() -> Result<Arc<Runtime>> {
    if side::is_own_side() {
        return Err(Error::new(Kind::WrongSide, "an orbit cannot make orbits or calls of its own: do it in main"));
    }
    let own = RUNTIME.lock();
    {
        let slot = own.read().unwrap_or_else(|e| e.into_inner());
        if let Some(runtime) = &*slot {
            return Ok(runtime.clone());
        }
    }
    let mut slot = own.write().unwrap_or_else(|e| e.into_inner());
    if let Some(runtime) = &*slot {
        return Ok(runtime.clone());
    }
    let fresh = Runtime::start(Config::default())?;
    *slot = Some(fresh.clone());
    side::set_up(true);
    Ok(fresh)
}

/// A process that is no orbit yet. Dropped without having become one, it is killed: it may sleep
/// where it does not see that main has let go.
pub(crate) struct Spare {
    pub template: Arc<Template>,
    /// There until it has become an orbit.
    process: Option<template::Clone>,
    /// The channel it has, if it was made ahead of need.
    pub channel: Option<Channel>,
}

impl Spare {
    /// The one that the template was asked for, without a channel.
    fn answered(template: &Arc<Template>) -> Result<Spare> {
        Ok(Spare { template: template.clone(), process: Some(template.answer()?), channel: None })
    }

    pub fn process(&self) -> Result<&template::Clone> {
        self.process.as_ref().ok_or_else(|| Error::new(Kind::Down, "this process is an orbit already"))
    }

    /// It is an orbit now.
    pub fn take(mut self) -> Option<template::Clone> {
        self.process.take()
    }

    /// Sends it a channel, with what is written there.
    pub fn send_channel(&self, down: &DownSide, up: &UpSide, event: &Own) -> Result<()> {
        let lines = Lines { log_bytes: down.log_bytes() };
        let process = self.process()?;
        let fds = down.fd().and_then(|down| Ok([down, up.fd()?, event.fd()?]));
        let sent = fds.and_then(|fds| socket::send(process.socket.fd()?, wire::bytes_of(&lines), &fds));
        sent.map(drop).map_err(|e| Error::system("handing a process its channel", e))
    }

    fn has_ended(&self) -> bool {
        self.process.as_ref().is_none_or(|p| template::has_ended(&p.pidfd))
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            let _ = self.template.kill(process.pid, &process.pidfd);
        }
    }
}

/// A process that is there, or on its way while its channel is being made.
pub(crate) enum Coming {
    Here(Box<Spare>),
    Asked(Arc<Template>),
}

impl Coming {
    pub fn process(self) -> Result<Spare> {
        match self {
            Coming::Here(spare) => Ok(*spare),
            Coming::Asked(template) => Spare::answered(&template),
        }
    }

    /// The channel of the spare, if it has one with a log of this size.
    pub fn take_channel(&mut self, log_bytes: usize) -> Option<Channel> {
        match self {
            Coming::Here(spare) => spare.channel.take_if(|c| c.down.log_bytes() == log_bytes),
            Coming::Asked(_) => None,
        }
    }
}

impl Runtime {
    fn start(mut config: Config) -> Result<Arc<Runtime>> {
        if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
            config.spin = std::time::Duration::ZERO;
        }
        Template::check_place()?;
        let window = area::reserve_window(Bytes::new(config.window))?;
        limits::sweep();
        let template = Arc::new(Template::make(window, &config)?);
        let runtime = Arc::new(Runtime {
            config,
            generation: generation(),
            template: Mutex::new(Some(template)),
            spares: Mutex::new(Vec::new()),
            becoming: AtomicU32::new(0),
            orbits: Mutex::new(Vec::new()),
            buried: Mutex::new(Vec::new()),
            unmapped: Mutex::new(Vec::new()),
            unnamed: Mutex::new(Vec::new()),
            room: Room::new(),
            status: Mutex::new(StatusPage::create()?),
            door: Mutex::new(Arc::new(Runtime::make_door()?)),
            next_wake: AtomicU64::new(u64::MAX),
            numbers: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            supervisor: Mutex::new(None),
        });
        *lock(&runtime.supervisor) = Some(supervisor::start(&runtime)?);
        runtime.knock();
        Ok(runtime)
    }

    /// Ends orbits, supervisor, spares and template, in this order: each makes no more of the next.
    fn end(&self) {
        {
            let _no_more_are_added = lock(&self.orbits);
            self.closed.store(true, Ordering::Relaxed);
        }
        for orbit in self.orbits() {
            let _ = orbit.destroy();
        }
        self.knock();
        let supervisor = lock(&self.supervisor).take();
        // A waker that the supervisor runs may shut the library down: it ends after it.
        if let Some(thread) = supervisor.filter(|t| t.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
        let unnamed = std::mem::take(&mut *lock(&self.unnamed));
        unnamed.iter().for_each(|(names, _)| names.let_go());
        drop(unnamed);
        // Copiers of calls that waited: they were killed.
        while !self.reap_buried() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.release_spares();
        if let Some(template) = lock(&self.template).take() {
            template.end();
        }
    }

    /// Whether the library was shut down.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The error of making an orbit then.
    pub fn was_shut_down() -> Error {
        Error::new(Kind::Gone, "the library was shut down while the orbit was being made")
    }

    /// The generation of the process that set the library up.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether this process set the library up itself, and is no fork of the one that did.
    pub fn is_of_this_process(&self) -> bool {
        self.generation == generation()
    }

    /// An error if this process is a fork of the one that set the library up.
    pub fn check_process(&self) -> Result<()> {
        if self.is_of_this_process() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Forked,
            "this process was forked from the one that made the orbit: orbits are not shared with a child; \
             make new areas and orbits here",
        ))
    }

    fn make_door() -> Result<Own> {
        eventfd::create().and_then(Own::new).map_err(|e| Error::system("a descriptor for the supervisor", e))
    }

    /// Whether the calling thread is the supervisor's, which must not wait for what it does itself:
    /// it runs wakers of the program's.
    pub fn is_supervisor(&self) -> bool {
        lock(&self.supervisor).as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id())
    }

    /// Whether the calling thread is all that writes to the program's memory: beside it there is
    /// the supervisor alone, and no io_uring or context of `io_submit`, whose results may come at
    /// any time.
    pub fn is_alone(&self) -> bool {
        // In this order: a supervisor that runs afterwards was among those counted.
        let two = orbit_linux::process::thread_count().is_ok_and(|threads| threads == 2);
        two && !self.is_supervisor()
            && lock(&self.supervisor).as_ref().is_some_and(|thread| !thread.is_finished())
            && orbit_linux::pinned::may_be_written().is_ok_and(|may| !may)
    }

    /// Wakes the supervisor.
    pub fn knock(&self) {
        let (door, is_new) = self.door();
        let _ = door.fd().map(eventfd::signal);
        if is_new {
            // The supervisor sleeps before the one that the program has closed: what else it hears
            // brings it to the new one.
            for orbit in self.orbits() {
                let _ = orbit.event.fd().map(eventfd::signal);
            }
            for spare in lock(&self.spares).iter() {
                let _ = spare.channel.as_ref().map(|channel| channel.event.fd().map(eventfd::signal));
            }
        }
    }

    /// The same in a handler of a fork: without memory, and without a lock that the thread may
    /// have. Where one is taken, the supervisor finds the news within a second.
    pub fn knock_in_fork() {
        let Some(Ok(slot)) = RUNTIME.existing().map(|slot| slot.try_read()) else { return };
        if let Some(runtime) = &*slot
            && let Ok(door) = runtime.door.try_lock()
            && let Some(door) = door.if_there()
        {
            eventfd::signal(door.as_fd());
        }
    }

    /// What wakes the supervisor; a new one if the program has closed it.
    pub fn door(&self) -> (Arc<Own>, bool) {
        let mut door = lock(&self.door);
        let fresh = if door.is_there() { None } else { Runtime::make_door().ok() };
        let is_new = fresh.is_some();
        if let Some(fresh) = fresh {
            *door = Arc::new(fresh);
        }
        (door.clone(), is_new)
    }

    /// How orbits are seen from outside; another page if the program has closed the descriptor by
    /// which it is found.
    pub fn status(&self) -> StatusPage {
        let mut status = lock(&self.status);
        if !status.is_found()
            && let Ok(fresh) = StatusPage::create()
        {
            *status = fresh;
        }
        status.clone()
    }

    /// Makes sure that the supervisor wakes by this time.
    pub fn wake_by(&self, at_ns: u64) {
        if at_ns < self.next_wake.load(Ordering::Relaxed) {
            self.knock();
        }
    }

    pub fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The template, made anew if it has ended.
    pub fn template(&self) -> Result<Arc<Template>> {
        let mut slot = lock(&self.template);
        if self.is_closed() {
            return Err(Runtime::was_shut_down());
        }
        match slot.as_ref().filter(|t| !t.is_gone()) {
            Some(template) => Ok(template.clone()),
            None => {
                let window = area::reserve_window(Bytes::new(self.config.window))?;
                let fresh = Arc::new(Template::make(window, &self.config)?);
                *slot = Some(fresh.clone());
                Ok(fresh)
            }
        }
    }

    /// A process that has the code at these addresses: a spare, without a system call, or one that
    /// the template is asked for. Each needs one [`Runtime::became`].
    pub fn take_process(&self, code: &[usize]) -> Result<Coming> {
        let present = lock(&self.template).clone().filter(|t| t.serves(code) && !t.is_gone());
        match present.and_then(|template| self.take_spare(&template)) {
            Some(spare) => Ok(Coming::Here(Box::new(spare))),
            None => self.ask(self.template_knowing(code)?),
        }
    }

    /// The same of this template and no other.
    pub fn take_process_of(&self, template: &Arc<Template>) -> Result<Coming> {
        match self.take_spare(template) {
            Some(spare) => Ok(Coming::Here(Box::new(spare))),
            None => self.ask(template.clone()),
        }
    }

    fn take_spare(&self, template: &Arc<Template>) -> Option<Spare> {
        let mut spares = lock(&self.spares);
        spares.retain(|spare| !spare.has_ended());
        let at = spares.iter().position(|spare| Arc::ptr_eq(&spare.template, template))?;
        self.becoming.fetch_add(1, Ordering::SeqCst);
        Some(spares.swap_remove(at))
    }

    fn ask(&self, template: Arc<Template>) -> Result<Coming> {
        template.ask()?;
        self.becoming.fetch_add(1, Ordering::SeqCst);
        Ok(Coming::Asked(template))
    }

    /// A process that was taken is the process of an orbit in the list now, or nothing came of it.
    pub fn became(&self) {
        self.becoming.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a process is between a spare and an orbit just now, where the supervisor sees it in
    /// neither list.
    pub fn is_becoming(&self) -> bool {
        self.becoming.load(Ordering::SeqCst) != 0
    }

    /// Descriptors that become readable when a spare has ended, or has become an orbit.
    pub fn spare_fds(&self) -> Vec<RawFd> {
        let spares = lock(&self.spares);
        let fds = spares.iter().flat_map(|spare| {
            let pidfd = spare.process().ok().and_then(|p| p.pidfd.number());
            [pidfd, spare.channel.as_ref().and_then(|c| c.event.number())].map(|number| number.unwrap_or(-1))
        });
        fds.collect()
    }

    /// Has orbits that are made from now on come from a template that knows this code.
    pub fn code_is_wanted(&self, code: usize) {
        if let Some(template) = lock(&self.template).as_ref().filter(|t| !t.knows(code)) {
            template.outdate();
        }
    }

    /// A template that has the code at these addresses: the present one, or a fresh one if they, or
    /// a call, want code that was loaded since.
    fn template_knowing(&self, code: &[usize]) -> Result<Arc<Template>> {
        let template = self.template()?;
        if template.serves(code) {
            return Ok(template);
        }
        let fresh = Arc::new(Template::make(area::reserve_window(Bytes::new(self.config.window))?, &self.config)?);
        if let Some(stranger) = code.iter().find(|at| !fresh.knows(**at)) {
            return Err(Runtime::no_code_at(*stranger));
        }
        *lock(&self.template) = Some(fresh.clone());
        lock(&self.spares).clear();
        Ok(fresh)
    }

    /// The error for an address that is not of one of main's functions.
    pub fn no_code_at(address: usize) -> Error {
        let why = format!("{address:#x} is not the address of a function: no loaded object has code there");
        Error::new(Kind::Invalid, why)
    }

    /// Gives up what was made ahead of need, and with it its descriptors; false if there was
    /// nothing.
    pub fn release_spares(&self) -> bool {
        !std::mem::take(&mut *lock(&self.spares)).is_empty()
    }

    /// Whether descriptors are running out: the kernel gives the lowest number that is free, and
    /// the library's own lie above.
    fn few_descriptors(&self) -> bool {
        let newest = self.door().0.get().ok().and_then(|door| door.try_clone().ok());
        let (Some(newest), Ok((allowed, _))) = (newest, rlimit::get(0, Resource::Files)) else { return true };
        let lowest = newest.as_raw_fd();
        let above = own::registered().filter(|number| *number > lowest).count();
        lowest as u64 + above as u64 + DESCRIPTORS_TO_SPARE > allowed
    }

    /// Makes up for spares that were taken; one at a time, so that the supervisor stays attentive.
    /// True: call again.
    pub fn restock(&self) -> bool {
        if self.config.spares == 0 || self.is_closed() {
            return false;
        }
        let Some(template) = lock(&self.template).clone() else { return false };
        lock(&self.spares).retain(|spare| Arc::ptr_eq(&spare.template, &template) && !spare.has_ended());
        if template.is_gone() || lock(&self.spares).len() >= self.config.spares || self.few_descriptors() {
            return false;
        }
        let made = template.ask().and_then(|()| {
            let channel = Channel::create(LOG_BYTES);
            let mut spare = Spare::answered(&template)?;
            let channel = channel?;
            spare.send_channel(&channel.down, &channel.up, &channel.event)?;
            channel.down.populate();
            spare.channel = Some(channel);
            Ok(spare)
        });
        made.map(|spare| lock(&self.spares).push(spare)).is_ok()
    }

    /// Leaves a copier that has ended, or soon will, to the supervisor.
    pub fn bury(&self, mut copier: Copier) {
        if !copier.reap() {
            lock(&self.buried).push(copier);
            self.knock();
        }
    }

    /// Has the supervisor give these notices of a crash once its names are settled.
    pub fn notice_once_named(&self, names: Arc<Names>, notice: Notice) {
        lock(&self.unnamed).push((names, notice));
        self.knock();
    }

    /// Gives the notices that are due. Returns the descriptors on which names come that are
    /// awaited, and when the first of them are given up.
    pub fn give_notices(&self) -> (Vec<RawFd>, Option<Instant>) {
        let mut due = std::mem::take(&mut *lock(&self.unnamed));
        let waiting: Vec<_> = due.extract_if(.., |(names, _)| !names.are_settled()).collect();
        let polled = waiting.iter().map(|(names, _)| names.number()).collect();
        let until = waiting.iter().map(|(names, _)| names.until()).min();
        lock(&self.unnamed).extend(waiting);
        // Without the lock: this runs wakers.
        drop(due);
        (polled, until)
    }

    /// Has the supervisor map the first `bytes` of a replica, so that the next call pays for no
    /// page fault there.
    pub fn populate(&self, alias: Arc<Shared>, bytes: usize) {
        lock(&self.unmapped).push((alias, bytes));
        self.knock();
    }

    /// Maps what was asked for.
    pub fn populate_now(&self) {
        for (alias, bytes) in std::mem::take(&mut *lock(&self.unmapped)) {
            channel::populate(&alias, bytes);
        }
    }

    /// Reaps what copiers have ended; false while some have not.
    pub fn reap_buried(&self) -> bool {
        let mut buried = lock(&self.buried);
        buried.retain_mut(|copier| !copier.reap());
        buried.is_empty()
    }

    /// Enters an orbit into the list. The supervisor comes to see it when its process has become
    /// it. An error if the library was shut down.
    pub fn add(&self, orbit: &Arc<Inner>) -> Result<()> {
        let mut orbits = lock(&self.orbits);
        if self.is_closed() {
            return Err(Runtime::was_shut_down());
        }
        orbits.push(Arc::downgrade(orbit));
        Ok(())
    }

    /// The orbits there are.
    pub fn orbits(&self) -> Vec<Arc<Inner>> {
        let mut orbits = lock(&self.orbits);
        orbits.retain(|o| o.strong_count() > 0);
        orbits.iter().filter_map(Weak::upgrade).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
