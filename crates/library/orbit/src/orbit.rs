//! An orbit as main holds it: how it is made, what it may use, how it is called and ended.

use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use orbit_linux::descriptors;

use crate::area::{Area, Hold};
use crate::call::{CallOptions, Outcome, Wakers};
use crate::calls::MAX_ARGS;
use crate::channel::Channel;
use crate::clock::A_CENTURY;
use crate::core::{Core, Given, Inner, Options, Pending, Restart, Stats, WhenFull};
use crate::error::{Error, Kind, Result};
use crate::future::Future;
use crate::kept::Kept;
use crate::life::{EndedBy, Life, Stage};
use crate::limits::{Applied, Limits};
use crate::log::LogWriter;
use crate::own::Own;
use crate::queue::Queue;
use crate::runtime::{self, LOG_BYTES, Runtime};
use crate::side::{Entry, Init};
use crate::units::{Address, Bytes};
use crate::update::{Gate, Operations, Plain, Update};

/// Bytes of the smallest log. Whatever wraps around in it, it has room for the largest arguments
/// once it is empty: else a call would wait for ever.
const LEAST_LOG_BYTES: usize = 256 << 10;
const _: () = assert!(LogWriter::need_for_args(MAX_ARGS).get() <= LEAST_LOG_BYTES);
/// Most descriptors that an orbit is passed.
const MOST_PASSED: usize = 1024;
/// Bytes of the largest log.
const MOST_LOG_BYTES: usize = 1 << 30;

/// How an orbit is to be made; see [`Orbit::builder`].
#[must_use]
pub struct OrbitBuilder {
    options: Options,
    passed: Vec<RawFd>,
}

impl OrbitBuilder {
    /// The function that calls run. It must be code of the program or of a library that is loaded
    /// now.
    pub fn entry(mut self, entry: Entry) -> Self {
        self.options.entry = Some(entry);
        self
    }

    /// A function that the orbit runs once when it starts, and after each restart; what it returns
    /// is the `store` that every call gets.
    pub fn init(mut self, init: Init) -> Self {
        self.options.init = Some(init);
        self
    }

    /// Whether the orbit's functions, entries of calls too, take their arguments first and the
    /// store second: the order of the paper (section 4.1). Default: the store first.
    pub fn args_first(mut self, first: bool) -> Self {
        self.options.args_first = first;
        self
    }

    /// What the orbit may use of memory and CPU.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.options.limits = limits;
        self
    }

    /// What becomes of it when it ends by itself. Default: restart on failure with back-off.
    pub fn restart(mut self, restart: Restart) -> Self {
        self.options.restart = restart;
        self
    }

    /// What becomes of waiting calls when it ends by itself. Default: they fail.
    pub fn pending(mut self, pending: Pending) -> Self {
        self.options.pending = pending;
        self
    }

    /// What a call does when there is no room for it. Default: it blocks.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.options.when_full = when_full;
        self
    }

    /// Deadline of calls that have none of their own. **Default: none**: a task that loops for ever
    /// then holds its call, and every call behind it, for ever. Give each orbit one that is well
    /// above what its calls take.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = Some(deadline);
        self
    }

    /// How long a call that has no deadline waits for an orbit that is down and about to be started
    /// again, before it fails with [`Kind::Down`]. A call that has one waits until then. Default:
    /// one second. Zero: such calls fail at once.
    pub fn wait_while_down(mut self, wait: Duration) -> Self {
        self.options.wait_while_down = wait.min(A_CENTURY);
        self
    }

    /// How long a task may sleep on a lock that lies in an area and was held in the snapshot,
    /// before its orbit is ended with
    /// [`Outcome::Stuck`]: nobody in the orbit can release it. Counted from when it is first seen:
    /// where `/proc` is there, orbits are checked once a second. `None`: it sleeps until its
    /// deadline, or for ever. Default: one second. A task that spins on such a lock, or sleeps with
    /// a limit of time, is not seen.
    pub fn stuck_after(mut self, after: Option<Duration>) -> Self {
        self.options.stuck_after = after;
        self
    }

    /// Size of the log, bytes: rounded up to 256 KiB, which the largest arguments need, or the next
    /// power of two; 1 MiB by default. More than 1 GiB is rejected when the orbit is built. All of
    /// it is memory in use from the start.
    pub fn log(mut self, bytes: usize) -> Self {
        self.options.log_bytes = bytes;
        self
    }

    /// Whether updates of this orbit may alter main (modifications, operations) or carry data only.
    /// Default: they may, in every area.
    pub fn may_alter(mut self, may: bool) -> Self {
        self.options.may_alter = may;
        self
    }

    /// The only areas that updates of this orbit may modify.
    pub fn alters(mut self, areas: &[&Area]) -> Self {
        self.options.alters = Some(areas.iter().map(|a| (*a).clone()).collect());
        self
    }

    /// Descriptors of main's that the orbit has too, each of its processes, under the same numbers:
    /// a log, say. They name the same open files: an offset, a lock, a flag is both sides'. All
    /// other numbers of main's above 2 are of no use in an orbit: every use of them fails with
    /// `EBADF`. At most 1,024; main may close its own once the orbit is made. What is no open
    /// descriptor is an error when the orbit is built.
    pub fn pass_fds(mut self, fds: &[BorrowedFd<'_>]) -> Self {
        self.passed.extend(fds.iter().map(AsRawFd::as_raw_fd));
        self
    }

    /// Makes the orbit. Returns when its process exists; its init function runs meanwhile. Some
    /// tens of microseconds with a spare, a few hundred without, whatever the size of main.
    pub fn build(mut self) -> Result<Orbit> {
        self.options.passed = given(&self.passed, &self.options.name)?;
        Orbit::make(self.options)
    }
}

/// Copies of the descriptors with these numbers, for an orbit of this name.
fn given(passed: &[RawFd], name: &str) -> Result<Vec<Arc<Given>>> {
    let doing = |number: RawFd| format!("passing descriptor {number} on to orbit \"{name}\"");
    if passed.len() > MOST_PASSED {
        let count = passed.len();
        let why = format!("orbit \"{name}\" cannot be passed {count} descriptors: at most {MOST_PASSED}");
        return Err(Error::new(Kind::TooLarge, why));
    }
    let give = |&number: &RawFd| {
        if !descriptors::is_open(number) {
            let why = format!("{}: it is not open; open it first, or leave it out", doing(number));
            return Err(Error::new(Kind::Invalid, why));
        }
        // SAFETY: open just now; should the program close it meanwhile, the copy fails.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let copy = fd.try_clone_to_owned().and_then(Own::of_program);
        let copy = copy.map_err(|e| Error::system(doing(number), e))?;
        Ok(Arc::new(Given { number, inherited: descriptors::is_inherited(fd), fd: copy }))
    };
    passed.iter().filter(|number| **number > 2).map(give).collect()
}

/// An auxiliary task in an address space of its own. Thread-safe; cheap to clone. The orbit ends
/// with [`Orbit::destroy`], or when the last handle and the last future are gone.
#[derive(Clone)]
pub struct Orbit {
    inner: Arc<Inner>,
}

impl fmt::Debug for Orbit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orbit").field("name", &self.inner.options.name).field("pid", &self.pid()).finish()
    }
}

impl Orbit {
    /// Begins an orbit of this name (shown by `orbit ps`, and, its first 15 bytes, as the process's
    /// name).
    pub fn builder(name: &str) -> OrbitBuilder {
        OrbitBuilder {
            passed: Vec::new(),
            options: Options {
                name: name.to_owned(),
                entry: None,
                init: None,
                args_first: false,
                limits: Limits::default(),
                restart: Restart::default(),
                pending: Pending::default(),
                when_full: WhenFull::default(),
                deadline: None,
                stuck_after: Some(Duration::from_secs(1)),
                wait_while_down: Duration::from_secs(1),
                log_bytes: LOG_BYTES,
                may_alter: true,
                alters: None,
                passed: Vec::new(),
            },
        }
    }

    /// An orbit with default options.
    pub fn new(name: &str, entry: Entry) -> Result<Orbit> {
        Orbit::builder(name).entry(entry).build()
    }

    fn make(mut options: Options) -> Result<Orbit> {
        if options.log_bytes > MOST_LOG_BYTES {
            return Err(Error::new(
                Kind::TooLarge,
                format!(
                    "orbit \"{}\" cannot have a log of {} bytes: at most 1 GiB ({MOST_LOG_BYTES})",
                    options.name, options.log_bytes
                ),
            ));
        }
        options.log_bytes = options.log_bytes.next_power_of_two().max(LEAST_LOG_BYTES);
        let runtime = runtime::runtime()?;
        let made = match Orbit::try_to_make(&runtime, options.clone()) {
            Err(e) if e.kind() == Kind::Limit && runtime.release_spares() => Orbit::try_to_make(&runtime, options),
            made => made,
        };
        // Whatever step it failed in: the reason is that.
        made.map_err(|e| if runtime.is_closed() { Runtime::was_shut_down() } else { e })
    }

    fn try_to_make(runtime: &Arc<Runtime>, options: Options) -> Result<Orbit> {
        let name = CString::new(options.name.as_str()).map_err(|_| {
            Error::new(Kind::Invalid, format!("the orbit's name {:?} has a zero byte: leave it out", options.name))
        })?;
        if options.entry.is_none() {
            return Err(Error::new(Kind::Invalid, format!("orbit \"{}\" has no entry function", options.name)));
        }
        let (mut coming, _becoming) = crate::life::call_for_process(runtime, &options, None)?;
        let ready = coming.take_channel(options.log_bytes);
        let has_channel = ready.is_some();
        // Made while the template clones, if it has to.
        let channel = ready.map_or_else(|| Channel::create(options.log_bytes), Ok);
        let spare = coming.process()?;
        let channel = channel?;
        let status = runtime.status().slot(&options.name);
        let spin_us = runtime.config.spin.as_micros().min(1_000_000) as u32;
        channel.down.spin_us.store(spin_us, Ordering::Relaxed);
        let limits = Applied::create(&options.limits, &options.name)?;
        let inner = Arc::new(Inner {
            generation: runtime.generation(),
            has_deadline: options.deadline.is_some(),
            number: runtime.next_number(),
            name,
            down: channel.down,
            event: channel.event,
            core: Mutex::new(Core {
                life: Life::new(),
                queue: Queue::new(),
                replicas: Vec::new(),
                forget: Vec::new(),
                limits,
                stats: Stats::default(),
                waiting_for_change: 0,
                wakers: Wakers::default(),
            }),
            changed: Condvar::new(),
            status,
            kept: Kept::new(),
            unpopulated: AtomicBool::new(!has_channel),
            next_deadline: AtomicU64::new(u64::MAX),
            options,
            runtime: runtime.clone(),
        });
        inner.give_process(&mut inner.lock(), spare, channel.up, has_channel)?;
        runtime.add(&inner)?;
        if !has_channel {
            // Nobody listens to its descriptor yet.
            runtime.knock();
        }
        Ok(Orbit { inner })
    }

    /// The orbit's name.
    pub fn name(&self) -> &str {
        &self.inner.options.name
    }

    /// Calls the entry function and waits for the end. `args` are at most [`crate::MAX_ARGS`]
    /// bytes, copied. Updates that the task pushes are taken with [`Orbit::pull`].
    pub fn call(&self, areas: &[&Area], args: &[u8]) -> Result<Outcome> {
        self.call_with(areas, args, &CallOptions::default())
    }

    /// The same with options.
    pub fn call_with(&self, areas: &[&Area], args: &[u8], options: &CallOptions) -> Result<Outcome> {
        self.call_async_with(areas, args, options)?.finish()
    }

    /// Takes the next update that a synchronous call ([`Orbit::call`]) of this orbit brought, the
    /// oldest first; `None` when none is left. Never blocks: they are there when the call returns,
    /// however it ended. Where several threads call, each may get the other's; to keep them apart
    /// use [`Orbit::call_async`], whose future has the updates of its call alone. At most
    /// [`crate::MAX_KEPT_BYTES`] wait (or one larger update): then the oldest are dropped, and
    /// [`Stats::dropped_updates`] counts them.
    pub fn pull(&self) -> Option<Update> {
        self.inner.kept.take()
    }

    /// Takes a snapshot of the areas and queues a call of the entry function; returns when the
    /// snapshot is taken. The objects must not change meanwhile: call inside the lock that guards
    /// them (section 4.3 of the paper).
    #[inline]
    pub fn call_async(&self, areas: &[&Area], args: &[u8]) -> Result<Future> {
        match self.call_usual(areas, args) {
            Some(future) => Ok(future),
            None => self.call_async_with(areas, args, &CallOptions::default()),
        }
    }

    /// [`Orbit::call_async`] on its short path, see `usual`. `None`: nothing was done that it would
    /// not do again.
    #[doc(hidden)]
    #[unsafe(link_section = "orbit_usual")]
    #[inline(never)]
    pub fn call_usual(&self, areas: &[&Area], args: &[u8]) -> Option<Future> {
        let call = self.inner.submit_usual(areas, args)?;
        Some(Future::joined(call, self.inner.clone()))
    }

    /// The same with options.
    pub fn call_async_with(&self, areas: &[&Area], args: &[u8], options: &CallOptions) -> Result<Future> {
        if options.is_plain()
            && let Some(future) = self.call_usual(areas, args)
        {
            return Ok(future);
        }
        let call = self.inner.submit(areas, args, options)?;
        Ok(Future::new(call, self.inner.clone()))
    }

    /// The same with a plain value as arguments.
    pub fn call_async_value<T: Plain>(&self, areas: &[&Area], args: &T) -> Result<Future> {
        self.call_async(areas, crate::update::bytes_of(args))
    }

    /// The same as [`Orbit::call`] with a plain value as arguments.
    pub fn call_value<T: Plain>(&self, areas: &[&Area], args: &T) -> Result<Outcome> {
        self.call(areas, crate::update::bytes_of(args))
    }

    /// Cancels the waiting calls that have these arguments and have not begun; returns how many.
    pub fn cancel_args(&self, args: &[u8]) -> usize {
        self.inner.cancel_args(args)
    }

    /// Applies an update of this orbit: checked first, then whole or not at all; operations run
    /// after the modifications.
    pub fn apply(&self, update: &Update) -> Result<()> {
        update.apply(&*self.inner)
    }

    /// All of [`Orbit::apply`] but the operations, which are left to be run.
    #[doc(hidden)]
    pub fn change<'a>(&self, update: &'a Update) -> Result<Operations<'a>> {
        update.change(&*self.inner)
    }

    /// Changes the limits, of the running process too as far as the kernel allows. Waits while that
    /// is just starting, until it has taken the limits that it was started under, at most a second.
    pub fn set_limits(&self, limits: Limits) -> Result<()> {
        self.inner.set_limits(limits)
    }

    /// How the limits are held here, in words: by control group, or by what stands in for one.
    pub fn limits_held(&self) -> String {
        self.inner.lock().limits.how()
    }

    /// Lets go of an area: the orbit has it no longer. Later calls may name it again. While the
    /// orbit is down this cancels the calls that wait ([`Pending::Keep`]).
    pub fn detach(&self, area: &Area) {
        self.inner.detach(area.id());
    }

    /// What the orbit has done so far.
    pub fn stats(&self) -> Stats {
        self.inner.reap();
        let core = self.inner.lock();
        let mut stats = core.stats.clone();
        stats.pending = core.queue.len() as u32;
        stats.dropped_updates = self.inner.kept.dropped();
        stats.pid = core.life.process().map_or(0, |p| p.pid);
        stats
    }

    /// The orbit's process, 0 while it is down.
    pub fn pid(&self) -> i32 {
        self.inner.lock().life.process().map_or(0, |p| p.pid)
    }

    /// Kills the orbit's process. It ends as by any other failure: the running call's outcome is
    /// [`Outcome::Killed`], and the restart policy decides what follows. A call made afterwards
    /// runs in the next process.
    pub fn kill(&self) -> Result<()> {
        self.inner.runtime.check_process()?;
        let mut core = self.inner.lock();
        self.inner.kill_process(&core)?;
        if core.life.condemned().is_none() {
            core.life.condemn(EndedBy::Kill);
        }
        Ok(())
    }

    /// Blocks until the orbit's process is up (it has run its init function), or this long.
    pub fn wait_ready(&self, timeout: Duration) -> Result<()> {
        let until = Instant::now() + timeout.min(A_CENTURY);
        loop {
            {
                let core = self.inner.lock();
                match core.life.stage() {
                    Stage::Destroyed => return Err(self.inner.destroyed()),
                    Stage::Ended(why) => return Err(self.inner.ended(why.as_ref())),
                    _ => {}
                }
                if core.life.process().is_some_and(|p| p.up.ready.load(Ordering::Acquire) == 1) {
                    return Ok(());
                }
            }
            if Instant::now() > until {
                let core = self.inner.lock();
                let why = core.life.why_down();
                let what = format!("orbit \"{}\" was not up within {timeout:?}{why}", self.name());
                return Err(Error::new(Kind::TimedOut, what));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Ends the orbit: its process is killed, waiting calls are cancelled, and every later call
    /// fails with [`Kind::Gone`]. Idempotent. Blocks until the process has ended; an error if it
    /// could not be killed, or did not end within seconds.
    pub fn destroy(&self) -> Result<()> {
        self.inner.runtime.check_process()?;
        self.inner.destroy()
    }
}

impl Gate for Inner {
    type Hold = Hold;

    fn may_modify(&self, address: usize, len: usize) -> Result<Hold> {
        self.may_operate()?;
        let Some(area) = crate::area::find(address).filter(|a| a.contains(address, len)) else {
            return Err(Error::new(Kind::Foreign, format!("{len} bytes at {address:#x} are in no area")));
        };
        match &self.options.alters {
            Some(allowed) if !allowed.iter().any(|a| a.id() == area.id()) => Err(Error::new(
                Kind::Denied,
                format!("orbit \"{}\" may not alter area \"{}\"", self.options.name, area.name()),
            )),
            _ => area.hold_to_write(Address::new(address), Bytes::new(len)),
        }
    }

    fn may_operate(&self) -> Result<()> {
        if self.options.may_alter {
            return Ok(());
        }
        Err(Error::new(
            Kind::Denied,
            format!(
                "orbit \"{}\" was made to push data only: its updates may neither modify areas nor run operations",
                self.options.name
            ),
        ))
    }
}
