//! One call as main sees it: what it asks for, how it ended, the updates it brought, and the [`Future`] that stands for it.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use orbit_linux::eventfd;

use crate::blackbox::Crash;
use crate::error::{Error, Kind, Result};
use crate::kept::MOST_BYTES as MAX_KEPT_BYTES;
use crate::orbit::Inner;
use crate::task::Entry;
use crate::update::Update;

/// Bytes of updates of one orbit, encoded, that wait in main's memory for the futures of calls which have not ended. Above,
/// the task that pushes waits until some were pulled.
pub const MOST_WAITING_BYTES: usize = 256 << 20;

/// How a call ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The function returned this.
    Returned(i64),
    /// The orbit crashed while the call ran: by which signal, where, and on what path.
    Crashed(Box<Crash>),
    /// The orbit ended itself by `exit` or `_exit` with this status; see [`Entry`] on which to use.
    Exited(i32),
    /// The orbit was killed by this signal from outside.
    Killed(i32),
    /// The orbit ran out of the memory it may use.
    OutOfMemory,
    /// The call was not done at its deadline. If it was running, its orbit was killed.
    TimedOut,
    /// The call never ran: it was cancelled, replaced, or its orbit was destroyed or went down before its turn,
    /// or the one-shot process that held its large snapshot died.
    Cancelled,
}

impl Outcome {
    /// What the function returned, if it did.
    pub fn returned(&self) -> Option<i64> {
        match self {
            Outcome::Returned(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether the orbit came to an end in this call.
    pub fn is_failure(&self) -> bool {
        !matches!(self, Outcome::Returned(_) | Outcome::Cancelled)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Returned(value) => write!(f, "returned {value}"),
            Outcome::Crashed(crash) => write!(f, "crashed: {crash}"),
            Outcome::Exited(status) => write!(f, "ended itself with exit status {status}"),
            Outcome::Killed(signal) => write!(f, "killed by signal {signal}"),
            Outcome::OutOfMemory => f.write_str("out of memory"),
            Outcome::TimedOut => f.write_str("not done at its deadline"),
            Outcome::Cancelled => f.write_str("cancelled before it ran"),
        }
    }
}

/// What to do when the same orbit has calls waiting already (the running call counts as waiting).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coalesce {
    /// Queue the call whatever waits.
    #[default]
    Never,
    /// If any call waits, take no snapshot and queue nothing: the future is that call's.
    SkipIfAny,
    /// The same if a call of the same function with the same arguments waits.
    SkipIfSame,
    /// Queue this one in the place of the calls of the same function that have not begun: they are cancelled once it is
    /// queued, and not if it fails. Those at the end of the queue leave their room to it, so that a call may be replaced
    /// any number of times while another runs. The others keep theirs until the orbit comes to them: those with a call of
    /// another function behind them, and those whose large snapshot a copier holds, with all before them.
    Replace,
}

/// How a call is to be made. The default: the orbit's entry function, no deadline but the orbit's own, no coalescing.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    pub(crate) function: Option<Entry>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) coalesce: Coalesce,
}

impl CallOptions {
    /// The default.
    pub fn new() -> CallOptions {
        CallOptions::default()
    }

    /// Runs this function in place of the orbit's entry, for this call.
    pub fn function(mut self, function: Entry) -> CallOptions {
        self.function = Some(function);
        self
    }

    /// Ends the call (and the orbit, if it runs it) when it is not done this long after it was made.
    pub fn deadline(mut self, deadline: Duration) -> CallOptions {
        self.deadline = Some(deadline);
        self
    }

    /// What to do when calls wait already.
    pub fn coalesce(mut self, coalesce: Coalesce) -> CallOptions {
        self.coalesce = coalesce;
        self
    }
}

/// A call's state in main, shared by its futures and its orbit's queue.
pub(crate) struct Call {
    /// Its place in the queue. That of a call taken back is given to another.
    pub number: u32,
    /// Function given for this call, 0 for the entry.
    pub function: usize,
    /// When it was made, nanoseconds of CLOCK_MONOTONIC.
    pub submitted_ns: u64,
    pub deadline: Option<Instant>,
    /// Set once the outcome is there.
    done: AtomicBool,
    /// Bytes of the updates that wait. Written under `state`.
    waiting: AtomicUsize,
    futures: AtomicUsize,
    state: Mutex<State>,
}

/// A waker, and the mark of the future that was polled with it.
type Marked = (Weak<()>, Waker);

/// Wakers to be woken once the orbit's lock is free: what a waker does is the program's affair, and it may well ask the
/// library something. They are woken, each once, when this is dropped. One that panics keeps nobody else from being woken;
/// the panic has been told by its hook.
#[derive(Default)]
pub(crate) struct Wakers(Vec<Marked>);

impl Wakers {
    pub fn append(&mut self, more: &mut Wakers) {
        self.0.append(&mut more.0);
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        for (mark, waker) in self.0.drain(..) {
            // Dropping a waker runs the program's code too.
            let _ = catch_unwind(AssertUnwindSafe(|| if mark.strong_count() > 0 { waker.wake() } else { drop(waker) }));
        }
    }
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    /// With the bytes of each.
    updates: VecDeque<(Update, usize)>,
    /// The last future is gone: nobody can pull updates.
    left: bool,
    /// One a [`Future`] that was polled as a Rust future, with the future's mark: the last one it was polled with. Those
    /// of futures that were dropped go at the next poll.
    wakers: Vec<Marked>,
    event: Option<Arc<OwnedFd>>,
    /// Whether this call is counted in the orbit's `notify` word.
    watched: bool,
}

impl State {
    /// Has the future of this mark wake this waker. Returns those that are not needed any more, to be dropped without the
    /// lock: what that does is the program's affair.
    fn wakes(&mut self, mark: &Arc<()>, waker: Waker) -> Vec<Marked> {
        let stays = |known: &Weak<()>| known.as_ptr() != Arc::as_ptr(mark) && known.strong_count() > 0;
        let (kept, old) = std::mem::take(&mut self.wakers).into_iter().partition(|(known, _)| stays(known));
        self.wakers = kept;
        self.wakers.push((Arc::downgrade(mark), waker));
        old
    }
}

impl Call {
    pub fn new(number: u32, function: usize, submitted_ns: u64, deadline: Option<Instant>) -> Call {
        Call {
            number,
            function,
            submitted_ns,
            deadline,
            done: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            futures: AtomicUsize::new(0),
            state: Mutex::new(State::default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Gives the call its outcome, once, and tells who waits for it: descriptors now, `wakers` later. Returns whether the call
    /// was being watched.
    pub fn finish(&self, outcome: Outcome, wakers: &mut Wakers) -> bool {
        let mut state = self.lock();
        if state.outcome.is_some() {
            return false;
        }
        state.outcome = Some(outcome);
        self.done.store(true, Ordering::Release);
        wakers.0.append(&mut state.wakers);
        if let Some(event) = &state.event {
            eventfd::signal(event.as_fd());
        }
        std::mem::take(&mut state.watched)
    }

    /// An update arrived for this call. It is let go of if nobody can pull it.
    pub fn add_update(&self, update: Update, wakers: &mut Wakers) {
        let bytes = update.encoded_bytes();
        let mut state = self.lock();
        if !state.left {
            state.updates.push_back((update, bytes));
            self.waiting.fetch_add(bytes, Ordering::Relaxed);
        }
        wakers.0.append(&mut state.wakers);
    }

    /// Bytes of the updates that wait to be pulled.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// One more future of this call.
    fn join(&self) {
        if self.futures.fetch_add(1, Ordering::AcqRel) == 0 {
            self.lock().left = false;
        }
    }

    /// One future less. If it was the last one, it has the updates that wait.
    fn leave(&self) -> VecDeque<(Update, usize)> {
        if self.futures.fetch_sub(1, Ordering::AcqRel) != 1 {
            return VecDeque::new();
        }
        let mut state = self.lock();
        // Another may have joined since.
        state.left = self.futures.load(Ordering::Acquire) == 0;
        if state.left { self.take_all(&mut state) } else { VecDeque::new() }
    }

    /// The updates that wait, if there is one future alone and they are more than a synchronous call may leave.
    fn take_too_many(&self) -> VecDeque<(Update, usize)> {
        if self.waiting_bytes() <= MAX_KEPT_BYTES {
            return VecDeque::new();
        }
        let mut state = self.lock();
        if self.futures.load(Ordering::Acquire) == 1 { self.take_all(&mut state) } else { VecDeque::new() }
    }

    fn take_all(&self, state: &mut State) -> VecDeque<(Update, usize)> {
        self.waiting.store(0, Ordering::Relaxed);
        std::mem::take(&mut state.updates)
    }

    fn outcome(&self) -> Option<Outcome> {
        if self.is_done() { self.lock().outcome.clone() } else { None }
    }

    fn take_update(&self) -> Option<Update> {
        let mut state = self.lock();
        let (update, bytes) = state.updates.pop_front()?;
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        Some(update)
    }
}

/// A call that was made: wait for its outcome, take its updates, or cancel it. May be cloned, sent and shared among
/// threads; dropping it leaves the call to run. It is a Rust [`Future`](std::future::Future) of the outcome too.
pub struct Future {
    pub(crate) call: Arc<Call>,
    pub(crate) orbit: Arc<Inner>,
    /// By which the call tells this future's waker from those of its clones; made at the first poll.
    mark: Option<Arc<()>>,
    /// Of a synchronous call, which leaves its updates to the orbit.
    synchronous: bool,
}

impl Drop for Future {
    fn drop(&mut self) {
        // In a forked child another thread of the parent may have the lock, for ever.
        if self.orbit.runtime.check_process().is_err() {
            return;
        }
        let updates = self.call.leave();
        if self.synchronous {
            updates.into_iter().for_each(|(update, _)| self.orbit.kept.add(update));
        }
    }
}

impl Clone for Future {
    fn clone(&self) -> Future {
        Future::new(self.call.clone(), self.orbit.clone())
    }
}

impl fmt::Debug for Future {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Future").field("call", &self.call.number).field("done", &self.call.is_done()).finish()
    }
}

impl Future {
    pub(crate) fn new(call: Arc<Call>, orbit: Arc<Inner>) -> Future {
        call.join();
        Future { call, orbit, mark: None, synchronous: false }
    }

    /// The outcome, if the call has ended. Never blocks for long; takes the orbit's lock for a moment.
    pub fn poll(&self) -> Option<Outcome> {
        if !self.call.is_done() {
            self.orbit.reap();
        }
        self.call.outcome()
    }

    /// Blocks until the call has ended.
    pub fn wait(&self) -> Result<Outcome> {
        match self.wait_until(None)? {
            Some(outcome) => Ok(outcome),
            None => Err(Error::new(Kind::TimedOut, "a wait without end came to one")),
        }
    }

    /// Blocks until the call has ended, or this long; then the error's kind is [`Kind::TimedOut`] and the call goes on.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Outcome> {
        self.wait_until(Instant::now().checked_add(timeout))?.ok_or_else(|| {
            Error::new(
                Kind::TimedOut,
                format!("call {} has not ended within {timeout:?}; it goes on", self.call.number),
            )
        })
    }

    fn wait_until(&self, until: Option<Instant>) -> Result<Option<Outcome>> {
        self.orbit.wait(until, || self.call.is_done())?;
        Ok(self.call.outcome())
    }

    /// Blocks until the call has ended, and leaves its updates to the orbit if this is the last future of the call: of a
    /// synchronous call nobody has another.
    pub(crate) fn finish(mut self) -> Result<Outcome> {
        self.synchronous = true;
        self.orbit.wait(None, || {
            self.call.take_too_many().into_iter().for_each(|(update, _)| self.orbit.kept.add(update));
            self.call.is_done()
        })?;
        self.wait()
    }

    /// The next update that the task pushed in this call, if one has arrived. Never blocks.
    pub fn try_pull(&self) -> Option<Update> {
        if let Some(update) = self.call.take_update() {
            return Some(update);
        }
        self.orbit.reap();
        self.call.take_update()
    }

    /// Blocks until the task pushes an update in this call (section 4.5 of the paper) and takes it; `None` when the call
    /// has ended and no update is left.
    pub fn pull(&self) -> Result<Option<Update>> {
        let mut update = None;
        self.orbit.wait(None, || {
            update = self.call.take_update();
            update.is_some() || self.call.is_done()
        })?;
        // An update may have come together with the end.
        Ok(update.or_else(|| self.call.take_update()))
    }

    /// A descriptor that becomes readable when the call has ended (level-triggered; made at the first use). It belongs to
    /// the future's call and is closed with the last future.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        let mut state = self.call.lock();
        if state.event.is_none() {
            let event = eventfd::create().map_err(|e| Error::system("a descriptor for a future", e))?;
            if state.outcome.is_some() {
                eventfd::signal(event.as_fd());
            }
            state.event = Some(Arc::new(event));
        }
        let event = state.event.clone();
        drop(state);
        self.watch();
        let Some(event) = event else {
            return Err(Error::new(Kind::Gone, "the future's descriptor is gone"));
        };
        // SAFETY: the descriptor lives in the call's state, where it is never replaced, and the call lives as long as
        // this future, from which the borrow is taken.
        Ok(unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&*event)) })
    }

    /// Cancels the call if it has not begun. True: it will never run, and its outcome is [`Outcome::Cancelled`]. False:
    /// it runs or has ended; to end a running call, destroy or restart its orbit, or give it a deadline.
    pub fn cancel(&self) -> bool {
        self.orbit.cancel(|waiting| Arc::ptr_eq(&waiting.call, &self.call)) > 0
    }

    /// Asks the orbit to signal the end of this call to the supervisor, who tells wakers and descriptors.
    fn watch(&self) {
        let mut state = self.call.lock();
        if state.outcome.is_none() && !state.watched {
            state.watched = true;
            drop(state);
            self.orbit.notify_more();
            // It may have ended before the orbit saw the word.
            self.orbit.reap();
        }
    }
}

impl std::future::Future for Future {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(outcome) = Future::poll(&self) {
            return Poll::Ready(outcome);
        }
        let mark = self.mark.get_or_insert_default().clone();
        let waker = context.waker().clone();
        let _old = {
            let mut state = self.call.lock();
            if state.outcome.is_none() { state.wakes(&mark, waker) } else { Vec::new() }
        };
        self.watch();
        match self.call.outcome() {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}
